//! The gateway's end of a link: a datagram socket whose other end is the VMM's.
//!
//! Guarantees: no frame is dropped because the VMM does not read. It waits here, and what makes
//! more frames asks [`Port::is_free`] first. While the port is held, nothing is written.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::limit::FRAMES_QUEUED_MAX;

/// What the kernel may hold for the VMM: four of the largest frames. The kernel gives less where
/// `net.core.wmem_max` is lower.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// The socket and what waits to be written to it.
#[derive(Debug)]
pub(crate) struct Port {
    socket: AsyncFd<OwnedFd>,
    waiting: VecDeque<Vec<u8>>,
    held: bool,
    closed: bool,
}

impl Port {
    /// Takes the descriptor of a datagram socket.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_type(&socket)? != rustix::net::SocketType::DGRAM {
            return Err(io::Error::other("it is no datagram socket"));
        }
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = forkd_netd_protocol::register(socket)?;
        Ok(Self { socket, waiting: VecDeque::new(), held: false, closed: false })
    }

    /// Whether a frame would be written at once.
    pub(crate) fn is_free(&self) -> bool {
        self.waiting.is_empty() && !self.held && !self.closed
    }

    /// Whether the answers to another frame of the guest have room.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < FRAMES_QUEUED_MAX
    }

    /// Whether there is no VMM any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Stops writing, or goes on.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
        self.flush();
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Writes a frame now, or when the VMM takes it.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        if !self.is_free() || !self.write(frame) {
            self.waiting.push_back(frame.to_vec());
        }
    }

    /// Writes what waits, as far as the VMM takes it.
    pub(crate) fn flush(&mut self) {
        while !self.held
            && let Some(frame) = self.waiting.pop_front()
        {
            if !self.write(&frame) {
                self.waiting.push_front(frame);
                return;
            }
        }
    }

    /// Whether the frame needs no further care.
    fn write(&mut self, frame: &[u8]) -> bool {
        let send = |socket: &OwnedFd| {
            Ok(rustix::net::send(socket.as_fd(), frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
        };
        match self.socket.try_io(Interest::WRITABLE, send) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                let gone = [
                    io::ErrorKind::ConnectionRefused,
                    io::ErrorKind::ConnectionReset,
                    io::ErrorKind::NotConnected,
                    io::ErrorKind::BrokenPipe,
                ];
                self.closed |= gone.contains(&error.kind());
                true
            }
        }
    }

    /// Reads one frame of the guest; none when there is no more.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let receive = |socket: &OwnedFd| {
            let (bytes, _) = rustix::net::recv(socket.as_fd(), &mut *buffer, RecvFlags::DONTWAIT)?;
            Ok(bytes)
        };
        match self.socket.try_io(Interest::READABLE, receive) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.closed |= error.kind() == io::ErrorKind::ConnectionReset;
                None
            }
        }
    }

    /// Waits for a frame of the guest.
    pub(crate) async fn readable(&self) {
        // Readiness stays set until a read finds nothing.
        drop(self.socket.readable().await.map(|mut guard| guard.retain_ready()));
    }

    /// Waits until the VMM takes a frame that waits here.
    pub(crate) async fn writable(&self) {
        if self.waiting.is_empty() || self.held {
            return std::future::pending().await;
        }
        drop(self.socket.writable().await.map(|mut guard| guard.retain_ready()));
    }
}
