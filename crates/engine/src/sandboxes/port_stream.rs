//! A connection to a port of a sandbox.

use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::lease::SharedLease;

/// A byte stream to a program in a sandbox.
///
/// Bytes that pass count as use of the sandbox; a connection that is merely open does not. A
/// connection that the sandbox resets ends with [`io::ErrorKind::ConnectionReset`], never with an
/// end that looks complete.
#[derive(Debug)]
pub struct PortStream {
    stream: UnixStream,
    lease: SharedLease,
    /// We have ended our direction.
    finished: bool,
}

impl PortStream {
    /// A gateway's stream to a sandbox with this lease.
    pub(super) fn new(stream: UnixStream, lease: SharedLease) -> Self {
        Self { stream, lease, finished: false }
    }

    fn touch_if(&self, moved: bool) {
        if moved {
            self.lease.touch();
        }
    }

    /// Whether the gateway has closed the stream in both directions. Where the guest has only ended
    /// its own direction, the gateway goes on to read.
    fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::empty())];
        let asked = poll(&mut fds, Some(&Timespec::default()));
        asked.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, wanted) = (buffer.filled().len(), buffer.remaining() > 0);
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let moved = buffer.filled().len() > before;
        self.touch_if(moved);
        if wanted && !moved && !self.finished && self.is_hung_up() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.touch_if(written > 0);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finished = true;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::sandboxes::lease::Lease;

    fn end(lease: &SharedLease) -> Instant {
        lease.with(|lease, now| lease.end(now)).expect("it has an idle timeout")
    }

    #[tokio::test]
    async fn bytes_that_pass_are_use_and_an_open_connection_is_not() {
        let idle = Some(Duration::from_secs(600));
        let lease = SharedLease::new(Lease::new(SystemTime::now(), None, idle));
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut near = PortStream::new(near, lease.clone());
        let mut byte = [0];
        let before = end(&lease);
        let waits = tokio::time::timeout(Duration::from_millis(20), near.read_exact(&mut byte));
        assert!(waits.await.is_err());
        assert_eq!(end(&lease), before, "nothing has passed");
        near.write_all(b"x").await.unwrap();
        let written = end(&lease);
        assert!(written > before);
        far.write_all(b"x").await.unwrap();
        near.read_exact(&mut byte).await.unwrap();
        let read = end(&lease);
        assert!(read > written);
        far.shutdown().await.unwrap();
        assert_eq!(near.read(&mut byte).await.unwrap(), 0);
        drop(near);
        assert_eq!(end(&lease), read, "an end is no use");
    }
}
