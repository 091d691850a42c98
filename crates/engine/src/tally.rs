//! What adds up while the engine runs.

use std::sync::{Mutex, PoisonError};

use forkd_types::TimeHistogram;

/// Sums over all branches.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    fault_service: Mutex<TimeHistogram>,
}

impl Tally {
    pub(crate) fn add_faults(&self, more: &TimeHistogram) {
        self.fault_service.lock().unwrap_or_else(PoisonError::into_inner).merge(more);
    }

    pub(crate) fn fault_service(&self) -> TimeHistogram {
        *self.fault_service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
