//! What joins the links of two members.
//!
//! Guarantees: bytes arrive as they were sent. The end of one side is the end of the other, and a
//! reset is a reset.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UnixStream;

/// One end of what joins two links. A socket alone would pass a reset on as an end.
#[derive(Debug)]
pub(crate) struct MemberStream {
    pub(crate) socket: UnixStream,
    was_reset: Arc<AtomicBool>,
}

impl MemberStream {
    /// Both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        let was_reset = Arc::<AtomicBool>::default();
        let near = Self { socket: ours, was_reset: Arc::clone(&was_reset) };
        Ok((near, Self { socket: theirs, was_reset }))
    }

    /// The close that follows is a reset.
    pub(crate) fn reset(&self) {
        self.was_reset.store(true, Ordering::Release);
    }

    /// What was read, unless the other end was reset: then its end is none.
    pub(crate) fn check(&self, bytes: usize) -> io::Result<usize> {
        match bytes == 0 && self.was_reset.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(bytes),
        }
    }
}
