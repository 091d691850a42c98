//! What work on another thread tells an operation, and hears from it.

use std::sync::atomic::{AtomicU64, Ordering};

use forkd_oci::{OciError, Watch};
use tokio_util::sync::CancellationToken;

use super::description::Progress;

const MIB: u64 = 1 << 20;
/// So many times at most a step tells how far it is.
const PARTS: u64 = 100;

/// Tells an operation how many MiB are done.
pub(crate) struct Watcher {
    tell: Box<dyn Fn(Progress) + Send + Sync>,
    cancelled: CancellationToken,
    told: AtomicU64,
}

impl Watcher {
    pub(super) fn new(
        tell: impl Fn(Progress) + Send + Sync + 'static,
        cancelled: CancellationToken,
    ) -> Self {
        Self { tell: Box::new(tell), cancelled, told: AtomicU64::new(u64::MAX) }
    }

    /// Waits for `work`, which is dropped when the operation is cancelled.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, OciError>>,
    ) -> Result<T, OciError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(OciError::Cancelled),
            done = work => done,
        }
    }
}

impl Watch for Watcher {
    fn progress(&self, done: u64, total: u64) {
        let part = done.saturating_mul(PARTS) / total.max(1);
        if self.told.swap(part, Ordering::Relaxed) != part {
            (self.tell)(Progress { done: done / MIB, total: total.div_ceil(MIB) });
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}
