//! The network gateway of a daemon, seen from outside.

use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};
use rustix::process::Pid;

/// The gateway that listens in this run directory, if one does.
#[must_use]
pub fn gateway_in(run_dir: &Path) -> Option<Pid> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).ok()?;
    let address = SocketAddrUnix::new(run_dir.join("netd.sock")).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    Some(sockopt::socket_peercred(&socket).ok()?.pid)
}
