//! Claims about what two machines from one image must not share: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod programs_wait_for_the_renewal;
mod random_numbers_differ_in_children;
mod twenty_children_have_identities_of_their_own;
mod unconfirmed_child_is_destroyed;

/// Twenty children load a small host; those of two tests at once would not answer in time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
