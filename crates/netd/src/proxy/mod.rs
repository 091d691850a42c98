//! Connections to hosts with header rules: the gateway ends them, and opens another to the server.
//!
//! ```text
//!  guest's flow -- pair of sockets -- TLS, as the server -- requests -- TLS, as a client -- server
//!                                       certificate made       |          certificate verified
//!                                                  headers of the rules
//! ```
//!
//! One task serves one connection, and it ends with the guest's. Both sides speak the version of
//! HTTP that the server has chosen of those that the guest offers, so a connection of the guest is
//! one connection to the server, and nothing is translated.
//!
//! Guarantees: a secret goes only to a server whose certificate is valid for the host that the rule
//! is for, in TLS. A request that names another host than the connection is refused, and so is one
//! that needs a secret which is not set. Policy and secrets are those of the moment at which the
//! request comes. Bodies pass as they come; nothing is held back.
//!
//! Does not do: change bodies, or what a server answers; a server that repeats a request's headers
//! shows the secret to the guest. Client certificates.

mod certificates;
mod context;
mod credentials;
mod forward;
mod request;
mod session;

use std::sync::Arc;

use forkd_types::Owner;
use forkd_types::network::HeaderRules;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::gate::Ended;
pub(crate) use context::Context;
pub(crate) use credentials::Credentials;

/// What the proxies of one link share.
pub(crate) struct Proxies {
    /// Those in force, for connections under way.
    pub(crate) rules: watch::Sender<HeaderRules>,
    pub(crate) owner: Owner,
    pub(crate) credentials: Arc<Credentials>,
    /// One for each proxy, and this one.
    pub(crate) counted: Arc<()>,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    task: AbortHandle,
    _counted: Arc<()>,
}

impl Proxy {
    /// Serves a guest that reaches this at `guest`.
    pub(crate) fn begin(
        ended: Ended,
        guest: UnixStream,
        server: TcpStream,
        context: Context,
        counted: Arc<()>,
    ) -> Self {
        let task = tokio::spawn(session::serve(ended, guest, server, context)).abort_handle();
        Self { task, _counted: counted }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
