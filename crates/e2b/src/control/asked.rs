//! Who asks, what for, and with which body.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use forkd_engine::{Engine, Sandbox};
use forkd_types::{Digest, SnapshotTag};
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Kind};
use crate::id;
use crate::shared::{Shared, Stand, stand_of};

/// The daemon as whoever has the request's key sees it.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Engine,
}

impl FromRequestParts<Arc<Shared>> for Asked {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<Shared>) -> Result<Self, Failure> {
        let key = parts.headers.get("x-api-key");
        let caller = key.and_then(|key| state.caller(key.as_bytes()));
        let text = "the X-API-KEY is missing or not known; `forkd e2b env` says what to set";
        let caller = caller.ok_or_else(|| Failure::new(Kind::Unauthenticated, text))?;
        Ok(Self { shared: Arc::clone(state), engine: state.engine.seen_by(caller) })
    }
}

impl Asked {
    /// The sandbox that a path names. One that is dead or ends is none.
    pub(super) fn sandbox(&self, said: &str) -> Result<Sandbox, Failure> {
        let unknown = || Failure::no_sandbox(said);
        let id = id::said(said).ok_or_else(unknown)?;
        let sandbox = self.engine.sandbox(&id).map_err(|_| unknown())?;
        if stand_of(sandbox.state) == Stand::Gone { Err(unknown()) } else { Ok(sandbox) }
    }

    /// Whether a template's name stands for a tag.
    pub(super) fn is_alias(&self, said: &str) -> bool {
        self.shared.templates.get(without_build(said)).is_some()
    }

    /// The snapshot that a template's name means: an alias, or a tag.
    pub(super) fn template(&self, said: &str) -> Result<SnapshotTag, Failure> {
        let name = without_build(said);
        let tag = match self.shared.templates.get(name) {
            Some(tag) => tag,
            None => name.parse().map_err(|_| {
                Failure::new(
                    Kind::NotFound,
                    format!("template '{}' not found: forkd has no builds by tag", shorten(said)),
                )
            })?,
        };
        let tag = tag.said_by(self.engine.caller().owner());
        if self.engine.snapshot(&tag).is_err() {
            let said = shorten(said);
            let text = format!(
                "template '{said}' not found; make it with `forkd template build IMAGE --tag \
                 {said}`, or let it stand for another with `forkd e2b alias {said}=TAG`"
            );
            return Err(Failure::new(Kind::NotFound, text));
        }
        Ok(tag)
    }
}

/// A template's name without its build: a snapshot's id ends with `:default`.
pub(super) fn without_build(said: &str) -> &str {
    said.strip_suffix(":default").unwrap_or(said)
}

fn shorten(said: &str) -> String {
    said.chars().take(80).collect()
}

/// A body of JSON, whatever its content type; an empty one is an empty object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Failure> {
        crate::connect::json_of(&received(request, state).await?).map(Self)
    }
}

/// A body of JSON, and the digest of its bytes.
pub(crate) struct HashedBody<T>(pub(crate) T, pub(crate) Digest);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for HashedBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Failure> {
        let bytes = received(request, state).await?;
        Ok(Self(crate::connect::json_of(&bytes)?, Digest::of(&bytes)))
    }
}

async fn received(request: Request, state: &Arc<Shared>) -> Result<Bytes, Failure> {
    Bytes::from_request(request, state).await.map_err(|error| {
        Failure::new(Kind::InvalidArgument, format!("the body was not received: {error}"))
    })
}

/// A part of the path, decoded.
pub(crate) type Said = Path<String>;

/// Runs `work` to its end even when the client goes away meanwhile.
pub(crate) async fn to_the_end<T: Send + 'static, E: Into<Failure> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::spawn(work).await {
        Ok(result) => result.map_err(Into::into),
        Err(error) => Err(Failure::new(Kind::Internal, format!("a task died: {error}"))),
    }
}
