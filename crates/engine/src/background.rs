//! Work that goes on beside requests: where it is started, and how it hears that the engine ends.
//!
//! Guarantees: work that was started is waited for when the engine shuts down.
//!
//! Does not do: decide what is worth doing.

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

use crate::EngineError;

/// Starts tasks and waits for them at the end.
#[derive(Debug, Clone)]
pub(crate) struct Background {
    tasks: TaskTracker,
    runtime: Handle,
    ending: CancellationToken,
}

impl Background {
    /// On the runtime of the caller.
    pub(crate) fn new() -> Self {
        let (tasks, ending) = (TaskTracker::new(), CancellationToken::new());
        Self { tasks, runtime: Handle::current(), ending }
    }

    /// Starts a task. May be called on any thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// Starts blocking work whose result nobody waits for. A panic in it is logged as the death of
    /// `what`.
    pub(crate) fn spawn_blocking(&self, what: &'static str, work: impl FnOnce() + Send + 'static) {
        self.spawn(async move {
            if let Err(error) = blocking(work).await {
                tracing::error!(%error, "{what} died");
            }
        });
    }

    /// The runtime that tasks run on.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether the engine shuts down: work that nobody asked for stops.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Waits until the engine shuts down.
    pub(crate) fn ending(&self) -> WaitForCancellationFuture<'_> {
        self.ending.cancelled()
    }

    /// Tells all work that the engine shuts down.
    pub(crate) fn end(&self) {
        self.ending.cancel();
    }

    /// Waits until all tasks are done.
    pub(crate) async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Runs blocking work on a thread that may wait, in the span of whoever waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .map_err(|error| EngineError::Internal(format!("blocking work ended: {error}")))
}

/// Waits for a turn.
pub(crate) async fn turn(
    turns: &Semaphore,
) -> Result<tokio::sync::SemaphorePermit<'_>, EngineError> {
    turns.acquire().await.map_err(|_| EngineError::Internal("shutting down".to_owned()))
}
