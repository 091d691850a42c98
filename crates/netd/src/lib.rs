//! The gateway: the process `forkd netd`, through which all sandboxes reach the network.
//!
//! It ends every connection of a guest in user space and opens an ordinary socket of the host for
//! it, if the sandbox's policy permits. It is the guests' resolver, their firewall, the door to
//! their ports, and the log of what they reached.
//!
//! ```text
//!  guest -- frames --> port -> wire --+--> tcp ------> flow + gate --> host's sockets
//!                                     |                     \--> proxy --/
//!                                     +--> datagram ----------------/
//!                                     +--> resolver -> dns
//!  another guest's link -- knock --> members -> inbound
//!  daemon -- requests --> server -> link (one task owns one link)
//! ```
//!
//! Guarantees: nothing that a guest sends ends or blocks the gateway, and what a guest can make it
//! hold is bounded (see `limit`). What the policy does not permit is refused at once. Bytes that
//! were accepted are delivered or the connection is reset; none is dropped. TLS is opened only to
//! hosts with header rules. Sandboxes reach each other as members of a private network only. A
//! confined gateway executes nothing, and reaches no other process, no file but its logs and the
//! list of resolvers, and no socket of the host by its path.
//!
//! Does not do: resume connections of an earlier process.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

mod context;
mod datagram;
mod dns;
mod filter;
mod flow;
mod gate;
mod host;
mod inbound;
mod journal;
mod limit;
mod link;
mod member_stream;
mod members;
mod names;
mod pins;
mod policy;
mod port;
mod proxy;
mod ready;
mod remembered;
mod resolver;
mod server;
mod stack;
mod stale;
mod tcp;
mod totals;
mod wire;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::{io, result};

use rustix::process::{DumpableBehavior, Resource, Rlimit};

pub use crate::filter::Filtered;
use crate::link::Places;
use crate::server::Server;

/// Daemons that may wait to be heard.
const BACKLOG: i32 = 1024;

/// What a gateway is started with.
#[derive(Debug)]
pub struct NetdOptions {
    /// Where it listens for the daemon: bound already, for this process may not be able to.
    pub socket: OwnedFd,
    /// Where its logs go: a folder with one for each sandbox, by its id. Where there is none,
    /// nothing is logged.
    pub log_dir: PathBuf,
    /// Which resolvers the host asks.
    pub resolv_conf: PathBuf,
    /// Which threads may make only the system calls of a gateway, from when it listens.
    pub filtered: Filtered,
}

/// Why the gateway ends.
#[derive(Debug, thiserror::Error)]
pub enum NetdError {
    /// It cannot listen.
    #[error("the control socket cannot be listened on")]
    Listen(#[source] io::Error),
    /// Its system calls cannot be filtered.
    #[error("its system calls cannot be filtered: {0}")]
    Filter(String),
    /// It can listen no longer.
    #[error("the control socket failed")]
    Serve(#[source] io::Error),
}

/// Keeps the memory of this process from core dumps and from other programs of its user: there are
/// secrets in it.
///
/// # Errors
/// What the kernel says.
pub fn hide_memory() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Serves all links, until no VMM has one and no daemon is there.
///
/// # Errors
/// When it cannot listen, or cannot be confined.
pub async fn run(options: NetdOptions) -> result::Result<(), NetdError> {
    let NetdOptions { socket, log_dir, resolv_conf, filtered } = options;
    // Each connection is a descriptor.
    let most = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: most.maximum, ..most };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "the gateway has few descriptors");
    }
    // Who connects can tell the process that listens (`unix(7)`).
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| NetdError::Listen(errno.into()))?;
    // Logs are read by the daemon, whose user may be another. The folder says who gets there.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    filter::apply(filtered).map_err(|error| NetdError::Filter(error.to_string()))?;
    let (logs, resolv_conf) = (log_dir.into(), resolv_conf.into());
    let (credentials, directory, totals) = (Arc::default(), Arc::default(), Arc::default());
    let places = Places { credentials, directory, logs, resolv_conf, totals };
    Server::new(places).run(socket).await.map_err(NetdError::Serve)
}
