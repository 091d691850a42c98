//! What every handler has at hand.

use std::future::Future;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use forkd_api::{self as api, ErrorCode};
use forkd_engine::{Accelerator, Caller, Engine, EngineError};
use forkd_types::{Owner, SnapshotTag, TagName, limit};
use tracing::Instrument as _;

use crate::budget::BodyBudget;
use crate::convert;
use crate::failure::Failure;
use crate::metrics::Metrics;

/// What all requests share; cheap to clone. A handler does not get it, but an [`App`].
#[derive(Clone)]
pub(crate) struct Shared {
    engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bodies: BodyBudget,
}

impl Shared {
    pub(crate) fn new(engine: Engine, metrics: Arc<Metrics>) -> Self {
        Self { engine, metrics, bodies: BodyBudget::new(limit::BODIES_BYTES_MAX) }
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
}

impl FromRequestParts<Shared> for App {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Failure> {
        // The gate says who asks. Nobody is let in without it.
        let caller = parts.extensions.get::<Caller>().cloned();
        let unknown = || Failure::new(ErrorCode::Internal, "nobody said who asks");
        let engine = shared.engine.seen_by(caller.ok_or_else(unknown)?);
        Ok(Self { engine, metrics: Arc::clone(&shared.metrics) })
    }
}

impl App {
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
        convert::sandbox(sandbox, self.reader())
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
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(result) => result.map_err(Failure::from),
        Err(error) => Err(Failure::new(ErrorCode::Internal, format!("a task died: {error}"))),
    }
}
