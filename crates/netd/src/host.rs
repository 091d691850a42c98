//! The host's sockets: connections to the internet, and to the daemon.
//!
//! Guarantees: nothing here blocks. The host's own addresses are never connected to, whatever the
//! policy says, but for its loopback address where the policy lists it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::limit::DIAL_DEADLINE;
use crate::member_stream::MemberStream;

/// A port that nothing is sent to.
const UNSENT_PORT: u16 = 9;

/// Whether an address is the host's own: to reach it, the host would speak from it.
pub(crate) fn is_own(address: IpAddr) -> bool {
    source_of(address) == Some(address)
}

/// Whether the host has a way to the internet by IPv6. The address is one that nobody has.
pub(crate) fn reaches_ipv6() -> bool {
    source_of(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()).is_some()
}

/// The address that the host would speak from. No packet is sent.
fn source_of(address: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match address {
        IpAddr::V4(_) => ([0; 4], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((address, UNSENT_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Connects, or says why not.
pub(crate) async fn dial(to: SocketAddr) -> io::Result<Stream> {
    let stream = timeout(DIAL_DEADLINE, TcpStream::connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(Stream::Tcp(stream))
}

/// The host's end of a connection of the guest.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Another sandbox.
    Member(MemberStream),
}

impl Stream {
    /// Reads now; `WouldBlock` when there is nothing, and then the waker of `context` is woken when
    /// there is.
    pub(crate) fn read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> io::Result<usize> {
        now(
            || match self {
                Self::Tcp(stream) => stream.try_read(buffer),
                Self::Unix(stream) => stream.try_read(buffer),
                Self::Member(stream) => stream.check(stream.socket.try_read(buffer)?),
            },
            || match self {
                Self::Tcp(stream) => stream.poll_read_ready(context),
                Self::Unix(stream) => stream.poll_read_ready(context),
                Self::Member(stream) => stream.socket.poll_read_ready(context),
            },
        )
    }

    /// Writes now; `WouldBlock` as in [`Stream::read`].
    pub(crate) fn write(&self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        now(
            || match self {
                Self::Tcp(stream) => stream.try_write(bytes),
                Self::Unix(stream) => stream.try_write(bytes),
                Self::Member(stream) => stream.socket.try_write(bytes),
            },
            || match self {
                Self::Tcp(stream) => stream.poll_write_ready(context),
                Self::Unix(stream) => stream.poll_write_ready(context),
                Self::Member(stream) => stream.socket.poll_write_ready(context),
            },
        )
    }

    /// Says that nothing more is written; reading goes on.
    pub(crate) fn finish(&self) {
        rustix::net::shutdown(self.as_fd(), Shutdown::Write).ok();
    }

    /// Makes the close a reset, so that the other end does not take what it has for the whole.
    pub(crate) fn reset_on_close(&self) {
        match self {
            Self::Tcp(_) => {
                sockopt::set_socket_linger(self.as_fd(), Some(Duration::ZERO)).ok();
            }
            Self::Member(stream) => stream.reset(),
            Self::Unix(_) => {}
        }
    }
}

/// Tries until it is done, or until `ready` says that there is something to wait for.
fn now<T>(
    mut attempt: impl FnMut() -> io::Result<T>,
    mut ready: impl FnMut() -> Poll<io::Result<()>>,
) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match ready() {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Err(error),
            },
            done => return done,
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Member(stream) => stream.socket.as_fd(),
        }
    }
}
