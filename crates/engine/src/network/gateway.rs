//! What is asked of a gateway, whatever it is.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use forkd_netd_protocol::{Attach, ClientError, Flow, GatewayUsage, Notice};
use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use tokio::net::UnixStream;

/// The network device of a VM, seen from outside.
#[derive(Debug)]
pub(crate) struct VmLink {
    /// One datagram is one frame.
    pub(crate) socket: OwnedFd,
    /// Readable when the VMM has ended. The socket would not tell.
    pub(crate) vmm: OwnedFd,
}

/// Files that the gateway reads: what header rules need.
#[derive(Debug)]
pub(crate) struct CredentialFiles {
    pub(crate) secrets: File,
    /// The authority's private key.
    pub(crate) key: File,
    /// Certificates of the authorities that servers are believed from.
    pub(crate) roots: File,
}

/// A gateway for the links of all sandboxes.
#[async_trait]
pub(crate) trait Gateway: fmt::Debug + Send + Sync {
    /// Waits for a gateway process after the one with this number, which is 0 before the first.
    /// Gives its number.
    async fn started(&self, after: u64) -> u64;

    /// Waits for something that the gateway tells unasked. May be dropped without losing it.
    async fn noticed(&self) -> Notice;

    /// How much goes through it.
    async fn usage(&self) -> Result<GatewayUsage, ClientError>;

    /// Waits until a gateway that nobody needs has ended, for a moment at most.
    async fn gone(&self);

    /// The connections that a guest had, by what a gateway that is gone has left; some may have
    /// ended.
    fn left(&self, sandbox: &SandboxId) -> Vec<Flow>;

    /// The sandboxes whose links it has.
    async fn links(&self) -> Result<Vec<SandboxId>, ClientError>;

    /// Takes over a link. Refuses one of a sandbox of which it has another
    /// ([`Failure::HasLink`](forkd_netd_protocol::Failure::HasLink)).
    async fn attach(&self, attach: Attach, link: Arc<VmLink>) -> Result<(), ClientError>;

    /// Replaces what header rules need.
    async fn set_credentials(&self, files: Arc<CredentialFiles>) -> Result<(), ClientError>;

    /// Lets a link go: its flows end.
    async fn detach(&self, sandbox: &SandboxId) -> Result<(), ClientError>;

    /// Replaces what a sandbox may reach, and resets what it no longer may.
    async fn set_policy(
        &self,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
        leave: NetworkLeave,
    ) -> Result<(), ClientError>;

    /// Replaces the private networks that a sandbox is a member of.
    async fn set_networks(
        &self,
        sandbox: &SandboxId,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> Result<(), ClientError>;

    /// Connects to a port of a guest.
    async fn dial(&self, sandbox: &SandboxId, port: u16) -> Result<UnixStream, ClientError>;

    /// Sends nothing to a guest from now on, for a moment at most. Gives its connections.
    async fn hold(&self, sandbox: &SandboxId) -> Result<Vec<Flow>, ClientError>;

    /// Ends a hold. Gives the guest's connections.
    async fn release(&self, sandbox: &SandboxId) -> Result<Vec<Flow>, ClientError>;
}
