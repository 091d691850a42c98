//! What every handler has at hand.

use std::future::Future;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use forkd_api::{self as api, ErrorCode};
use forkd_engine::{Accelerator, Caller, Engine};
use forkd_types::{Owner, SnapshotTag, TagName, limit};
use tracing::Instrument as _;

use crate::budget::BodyBudget;
use crate::convert;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::preview_url::PreviewUrl;

/// What all requests share; cheap to clone. A handler does not get it, but an [`App`].
#[derive(Clone)]
pub(crate) struct Shared {
    engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bodies: BodyBudget,
    /// Where previews are, if they are anywhere.
    previews: Option<Arc<PreviewUrl>>,
}

impl Shared {
    pub(crate) fn new(engine: Engine, metrics: Arc<Metrics>) -> Self {
        let bodies = BodyBudget::new(limit::BODIES_BYTES_MAX);
        Self { engine, metrics, bodies, previews: None }
    }

    /// The same, with previews at `url`.
    pub(crate) fn with_previews(self, url: PreviewUrl) -> Self {
        Self { previews: Some(Arc::new(url)), ..self }
    }

    /// The engine as the daemon itself sees it, for requests that come with no owner.
    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What executes guests here.
    pub(crate) fn accelerator(&self) -> Accelerator {
        self.engine.accelerator()
    }
}

/// The daemon as the caller of one request sees it: what belongs to others does not exist.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    previews: Option<Arc<PreviewUrl>>,
}

impl FromRequestParts<Shared> for App {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Failure> {
        // The gate says who asks. Nobody is let in without it.
        let caller = parts.extensions.get::<Caller>().cloned();
        let unknown = || Failure::new(ErrorCode::Internal, "nobody said who asks");
        let engine = shared.engine.seen_by(caller.ok_or_else(unknown)?);
        let (metrics, previews) = (Arc::clone(&shared.metrics), shared.previews.clone());
        Ok(Self { engine, metrics, previews })
    }
}

impl App {
    /// Where previews are.
    pub(crate) fn previews(&self) -> Option<&PreviewUrl> {
        self.previews.as_deref()
    }

    fn reader(&self) -> &Owner {
        self.engine.caller().owner()
    }

    /// The snapshot that the caller means.
    pub(crate) fn tag(&self, name: TagName) -> SnapshotTag {
        name.said_by(self.reader())
    }

    /// A snapshot's name for the caller.
    pub(crate) fn name(&self, tag: &SnapshotTag) -> String {
        tag.shown_to(self.reader())
    }

    /// A sandbox for the caller.
    pub(crate) fn sandbox(&self, sandbox: forkd_engine::Sandbox) -> api::Sandbox {
        let preview_url = self.previews().map(|previews| previews.template(&sandbox.id));
        api::Sandbox { preview_url, ..convert::sandbox(sandbox, self.reader()) }
    }

    /// A snapshot for the caller.
    pub(crate) fn snapshot(&self, snapshot: forkd_engine::Snapshot) -> api::Snapshot {
        convert::snapshot(snapshot, self.reader())
    }

    /// An operation for the caller.
    pub(crate) fn operation(&self, operation: forkd_engine::Operation) -> api::Operation {
        convert::operation(operation, self.reader())
    }
}

/// Runs `work` to its end even when the client goes away meanwhile: an engine request that changes
/// state is never cut off in the middle.
pub(crate) async fn to_the_end<T: Send + 'static, E: Into<Failure> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result.map_err(Into::into),
        Err(error) => Err(Failure::new(ErrorCode::Internal, format!("a task died: {error}"))),
    }
}
