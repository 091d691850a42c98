//! What every handler has at hand.

use std::future::Future;
use std::sync::Arc;

use forkd_api::ErrorCode;
use forkd_engine::{Engine, EngineError};
use tracing::Instrument as _;

use crate::failure::Failure;
use crate::metrics::Metrics;

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
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
