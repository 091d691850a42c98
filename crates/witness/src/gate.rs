//! Stopping all parties for a check, and letting them go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};

use crate::verdict::Violations;

/// What a party found when it was stopped.
#[derive(Debug)]
pub(crate) enum Report {
    /// A writer: who, how many writes and messages it has done.
    Writer { number: usize, writes: u64, messages: u64, violations: Violations },
    /// The recorder: how many records it has written.
    Recorder { records: u64, violations: Violations },
}

/// Where the parties meet the one who checks.
#[derive(Debug)]
pub(crate) struct Gate {
    closed: AtomicBool,
    arrive: Barrier,
    leave: Barrier,
    reports: Mutex<Vec<Report>>,
}

impl Gate {
    /// For so many parties besides the one who checks.
    pub(crate) fn new(parties: usize) -> Self {
        Self {
            closed: AtomicBool::new(false),
            arrive: Barrier::new(parties + 1),
            leave: Barrier::new(parties + 1),
            reports: Mutex::default(),
        }
    }

    /// Whether a party shall finish what it is doing and [`stop`](Self::stop).
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// A party hands in its report and waits until it may go on.
    pub(crate) fn stop(&self, report: Report) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        self.arrive.wait();
        self.leave.wait();
    }

    /// Stops all parties, does `work` with their reports, lets them go on.
    pub(crate) fn stopped<T>(&self, work: impl FnOnce(Vec<Report>) -> T) -> T {
        self.closed.store(true, Ordering::Relaxed);
        self.arrive.wait();
        let reports =
            std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        let result = work(reports);
        self.closed.store(false, Ordering::Relaxed);
        self.leave.wait();
        result
    }
}
