//! How the capture's thread shares the processor with the guest.
//!
//! It runs with real-time priority, so that a guest thread that waits for a fault waits for the
//! service alone and not for the end of somebody's time slice (4 ms where the kernel ticks 250
//! times a second). In return, where more threads want to run than there are processors, it rests after
//! every short piece of work, also while faults come without end, so that a virtual CPU that it has
//! displaced is never off for long.

use std::time::{Duration, Instant};

use forkd_sys::schedule::{self, RunQueue};
use forkd_types::limit;

/// Above everything that is not real-time itself.
const PRIORITY: u8 = 1;
/// Rests are timed to this, not to the 50 us by which the kernel groups timers.
const TIMER_SLACK: Duration = Duration::from_micros(1);

/// The share of the calling thread.
pub(crate) struct Pace {
    working_since: Instant,
    others: RunQueue,
}

impl Pace {
    /// Sets up the calling thread. Without the right to real-time priority it goes on with the
    /// ordinary one: faults are then served when the scheduler comes to it.
    pub(crate) fn of_this_thread() -> Self {
        if let Err(error) = schedule::become_realtime(PRIORITY) {
            tracing::debug!(%error, "faults are served without real-time priority");
        }
        if let Err(error) = schedule::set_timer_slack(TIMER_SLACK) {
            tracing::debug!(%error, "rests of the capture are timed coarsely");
        }
        Self { working_since: Instant::now(), others: RunQueue::open() }
    }

    /// The thread has waited for something: it has rested.
    pub(crate) fn has_rested(&mut self) {
        self.working_since = Instant::now();
    }

    /// Rests if it is time and somebody waits for the processor.
    pub(crate) fn rest_if_due(&mut self) {
        if self.working_since.elapsed() >= limit::SWEEP_BITE {
            if self.others.is_crowded() {
                std::thread::sleep(limit::SWEEP_REST);
            }
            self.has_rested();
        }
    }
}
