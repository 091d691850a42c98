//! A daemon that is there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::sockopt;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::client::connect;
use crate::message::{Notice, Reply, Request};
use crate::packet::Connection;
use crate::{ClientError, PacketError};

/// A connection over which nothing is asked. The gateway ends when no daemon is present and no VMM
/// has a link there; and whoever is present hears of its end, and what it has to tell.
#[derive(Debug)]
pub struct Presence(Connection);

impl Presence {
    /// At the gateway that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn at(path: &Path) -> Result<Self, ClientError> {
        let connection = connect(path).and_then(Connection::new);
        let unreachable = |source| ClientError::Unreachable { path: path.to_owned(), source };
        connection.map(Self).map_err(unreachable)
    }

    /// The process that listens there, as a descriptor.
    ///
    /// # Errors
    /// What the kernel says, and when it has ended.
    pub fn process(&self) -> io::Result<OwnedFd> {
        let pid = sockopt::socket_peercred(self.0.socket())?.pid;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // It was there all the time, so the number is still its own.
        if self.0.is_closed()? {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(process)
    }

    /// Asks for notices.
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn watch(&self) -> Result<(), PacketError> {
        self.0.send(&Request::Watch, &[]).await
    }

    /// Waits for the next notice. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// Why there will be no more: the gateway has ended, or speaks otherwise.
    pub async fn next(&self) -> Result<Notice, PacketError> {
        loop {
            if let (Reply::Notice(notice), _) = self.0.receive().await? {
                return Ok(notice);
            }
        }
    }
}
