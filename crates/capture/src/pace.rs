//! How the capture's thread shares the processors with the guest.
//!
//! It has an ordinary priority: a thread of the VMM that it displaces may hold a lock that all
//! virtual CPUs need. But it asks for the shortest time slices, so that it gets a processor soon
//! when a guest waits for the service of a fault, and not when somebody else's slice ends (4 ms
//! where the kernel ticks 250 times a second). And where more threads want to run than there are
//! processors it rests after every short piece of work, so that none is displaced for long.

use std::time::{Duration, Instant};

use forkd_sys::schedule::{self, RunQueue};
use forkd_types::limit;

/// The shortest slice that Linux gives.
const SLICE: Duration = Duration::from_micros(100);
/// Rests are timed to this, not to the 50 us by which the kernel groups timers.
const TIMER_SLACK: Duration = Duration::from_micros(1);

/// The share of the calling thread.
pub(crate) struct Pace {
    working_since: Instant,
    others: RunQueue,
}

impl Pace {
    /// Sets up the calling thread. Where the kernel refuses it goes on without.
    pub(crate) fn of_this_thread() -> Self {
        if let Err(error) = schedule::ask_for_short_slices(SLICE) {
            tracing::debug!(%error, "faults are served when the scheduler comes to it");
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
