//! Holding our writes back while a VM is paused.
//!
//! QEMU goes on reading the agent's socket while its guest is paused, and puts what it reads into
//! guest memory. After the device state was saved that would tear the snapshot: the memory would
//! know of bytes that the device does not. So before the pause the write gate is closed, and the
//! kernel is asked until QEMU has taken everything that was written before.

use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::GuestError;
use super::call::Deadline;
use super::connection::Connection;

const WHAT: &str = "quiesce";

/// First and longest sleep between two looks at the socket's queue.
const POLL_MIN: Duration = Duration::from_micros(20);
const POLL_MAX: Duration = Duration::from_millis(1);

/// While this lives nothing is written to the VM's agent socket. Requests may be made; they wait.
#[derive(Debug)]
#[must_use = "the gate opens when the guard is dropped"]
pub struct QuiesceGuard {
    _gate: OwnedMutexGuard<()>,
}

/// Closes the gate, then waits until the peer has read everything.
pub(super) async fn quiesce(
    connection: &Connection,
    within: Duration,
) -> Result<QuiesceGuard, GuestError> {
    let deadline = Deadline::after(within);
    let gate = std::sync::Arc::clone(&connection.gate).lock_owned();
    let gate = tokio::time::timeout_at(deadline.instant(), gate)
        .await
        .map_err(|_| deadline.timeout(WHAT))?;
    let mut pause = POLL_MIN;
    loop {
        let unread = forkd_sys::socket::unread_by_peer(&connection.stream).map_err(|error| {
            GuestError::Closed { reason: format!("the socket's queue cannot be read: {error}") }
        })?;
        if unread == 0 {
            return Ok(QuiesceGuard { _gate: gate });
        }
        if tokio::time::Instant::now() >= deadline.instant() {
            return Err(deadline.timeout(WHAT));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(POLL_MAX);
    }
}
