//! Mutexes, whose content is good even if a thread has panicked while it held one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever has become of earlier holders.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
