//! The event that wakes the interpreter's thread.

use std::os::fd::OwnedFd;

/// Makes it readable.
pub(super) fn notify(wake: &OwnedFd) {
    // A full counter is readable, which is all that matters.
    rustix::io::write(wake, &1u64.to_ne_bytes()).ok();
}

/// Makes it unreadable.
pub(super) fn clear(wake: &OwnedFd) {
    // "Would block" means that it is clear already.
    rustix::io::read(wake, &mut [0u8; 8]).ok();
}
