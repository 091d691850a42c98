//! Messages as packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forkd_sys::packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::message::VERSION;

/// A packet. The largest is an `Attach` with full lists and a full table of flows. A socket takes
/// no more than its buffer, of which the kernel gives 212,992 bytes to anybody.
pub const PACKET_BYTES_MAX: usize = 192 << 10;

/// Bytes of the version at the front of each packet.
const VERSION_BYTES: usize = size_of::<u16>();

/// Why a packet did not come or go.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The kernel says so.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The other end closed.
    #[error("the other end has closed the connection")]
    Closed,
    /// The other end is another version.
    #[error("the other end speaks version {theirs} of the protocol, and this one {VERSION}")]
    Version {
        /// Theirs.
        theirs: u16,
    },
    /// It cannot be read or written.
    #[error("a message of {bytes} bytes is damaged or too long")]
    Malformed {
        /// Of the packet.
        bytes: usize,
    },
}

/// One connected socket.
#[derive(Debug)]
pub struct Connection {
    socket: AsyncFd<OwnedFd>,
}

impl Connection {
    /// Takes a connected socket that does not block.
    ///
    /// # Errors
    /// Outside of a runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: register(socket)? })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the other end has closed.
    pub(crate) fn is_closed(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec::default()))?;
        Ok(polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP))
    }

    /// Sends one message.
    ///
    /// # Errors
    /// What the kernel says, and for messages that are too long.
    pub async fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), PacketError> {
        let mut bytes = VERSION.to_be_bytes().to_vec();
        let written = rmp_serde::encode::write(&mut bytes, message);
        if written.is_err() || bytes.len() > PACKET_BYTES_MAX {
            return Err(PacketError::Malformed { bytes: bytes.len() });
        }
        let send = |socket: &OwnedFd| Ok(packet::send(socket, &bytes, fds)?);
        Ok(self.socket.async_io(Interest::WRITABLE, send).await?)
    }

    /// Receives one message and the descriptors that came with it.
    ///
    /// # Errors
    /// What the kernel says; for another version and for damage.
    pub async fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), PacketError> {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let receive = |socket: &OwnedFd| Ok(packet::receive(socket.as_fd(), &mut buffer)?);
        let (bytes, fds) = self.socket.async_io(Interest::READABLE, receive).await?;
        let Some((version, message)) = buffer[..bytes].split_first_chunk::<VERSION_BYTES>() else {
            return Err(PacketError::Closed);
        };
        let theirs = u16::from_be_bytes(*version);
        if theirs != VERSION {
            return Err(PacketError::Version { theirs });
        }
        let message =
            rmp_serde::from_slice(message).map_err(|_| PacketError::Malformed { bytes })?;
        Ok((message, fds))
    }
}

/// A descriptor that does not block, with the runtime that this is called in.
///
/// # Errors
/// When the kernel cannot watch it.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(deprecated, reason = "unsound only for types that can change their descriptor")]
    AsyncFd::new(fd)
}
