//! The control interface: sandboxes are made, listed, ended, forked, paused and kept as snapshots.

mod create;
mod fork;
mod life;
mod list;
mod network;
mod shown;
mod snapshots;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::routing::{delete, get, post, put};
use forkd_engine::{Engine, Sandbox};
use forkd_types::SnapshotTag;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Kind};
use crate::id;
use crate::server::{Shared, Stand, stand_of};

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let create = || post(create::create);
    let listing = get(list::list);
    Router::new()
        .route("/sandboxes", create().merge(listing.clone()))
        .route("/v2/sandboxes", create().merge(listing))
        .route("/sandboxes/{id}", get(life::detail).delete(life::kill))
        .route("/sandboxes/{id}/timeout", post(life::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refresh))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/resume", post(life::connect))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/metrics", get(life::metrics))
        .route("/sandboxes/{id}/network", put(network::replace))
        .route("/sandboxes/{id}/fork", post(fork::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/templates/{id}", delete(snapshots::remove))
        .route("/health", get(|| async { "" }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_route)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

async fn unknown_route(request: Request) -> Failure {
    let shown: String = request.uri().path().chars().take(80).collect();
    let text = format!("forkd does not do {} {shown}", request.method());
    Failure::new(Kind::NotFound, text)
}

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
    fn sandbox(&self, said: &str) -> Result<Sandbox, Failure> {
        let unknown = || Failure::no_sandbox(said);
        let id = id::said(said).ok_or_else(unknown)?;
        let sandbox = self.engine.sandbox(&id).map_err(|_| unknown())?;
        if stand_of(sandbox.state) == Stand::Gone { Err(unknown()) } else { Ok(sandbox) }
    }

    /// The snapshot that a template's name means: an alias, or a tag. A snapshot's id ends with
    /// `:default`.
    fn template(&self, said: &str) -> Result<SnapshotTag, Failure> {
        let name = said.strip_suffix(":default").unwrap_or(said);
        let tag = match self.shared.templates.get(name) {
            Some(tag) => tag.clone(),
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
                 {said}`, or let it stand for another with `forkd serve --e2b-template {said}=TAG`"
            );
            return Err(Failure::new(Kind::NotFound, text));
        }
        Ok(tag)
    }
}

fn shorten(said: &str) -> String {
    said.chars().take(80).collect()
}

/// A body of JSON, whatever its content type; an empty one is an empty object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Failure> {
        let bytes = axum::body::Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| {
            Failure::new(Kind::InvalidArgument, format!("the body was not received: {error}"))
        })?;
        crate::connect::json_of(&bytes).map(Self)
    }
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
