//! What the work of an operation holds: it tells of its steps, and learns that it is cancelled.

use std::sync::Arc;

use forkd_types::OperationId;
use tokio_util::sync::CancellationToken;

use super::{Operations, Progress};
use crate::EngineError;

/// An operation under way. When this is dropped before its end, the work has died: the operation
/// has failed.
#[derive(Debug)]
pub(crate) struct Running {
    operations: Arc<Operations>,
    id: OperationId,
    cancelled: CancellationToken,
}

impl Running {
    pub(super) const fn new(
        operations: Arc<Operations>,
        id: OperationId,
        cancelled: CancellationToken,
    ) -> Self {
        Self { operations, id, cancelled }
    }

    pub(crate) const fn id(&self) -> &OperationId {
        &self.id
    }

    /// A new step has begun.
    pub(crate) fn step(&self, step: &'static str) {
        self.operations.update(&self.id, |operation| {
            operation.step = step;
            operation.progress = None;
        });
    }

    /// So many parts of the step are done.
    pub(crate) fn progress(&self, done: u64, total: u64) {
        let progress = Some(Progress { done, total });
        self.operations.update(&self.id, |operation| operation.progress = progress);
    }

    /// The error to stop with when somebody has cancelled the operation.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if self.cancelled.is_cancelled() {
            return Err(EngineError::Cancelled { id: self.id.clone() });
        }
        Ok(())
    }

    /// The point of no return: whoever cancels later is told `why` not.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`] when somebody was earlier.
    pub(crate) fn commit(&self, why: &'static str) -> Result<(), EngineError> {
        self.operations.commit(&self.id, why)
    }

    /// Waits for `work`, which is dropped when the operation is cancelled.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, EngineError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(EngineError::Cancelled { id: self.id.clone() }),
            value = work => Ok(value),
        }
    }

    /// It is over.
    pub(crate) fn end<T>(&self, result: &Result<T, EngineError>) {
        self.operations.end(&self.id, result.as_ref().err().cloned());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let died = EngineError::Internal("its work ended without a result".to_owned());
        self.operations.end(&self.id, Some(died));
    }
}
