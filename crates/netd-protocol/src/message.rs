//! Requests and replies.

use std::collections::BTreeMap;
use std::net::IpAddr;

use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use forkd_types::{Owner, SandboxId};
use serde::{Deserialize, Serialize};

/// Of the messages here. Daemon and gateway are the same program, but one may be older than the
/// other.
pub const VERSION: u16 = 3;

/// What the daemon asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Which sandboxes have a link here.
    Links,
    /// How much there is of everything.
    Usage,
    /// Answer with notices on this connection, as there is something to tell.
    Watch,
    /// Take the link whose descriptor comes along, with one that tells of the end of its VMM.
    Attach(Box<Attach>),
    /// Let a link go: its flows end, its descriptor is closed.
    Detach {
        /// Whose.
        sandbox: SandboxId,
    },
    /// Replace a policy. Flows that it no longer permits are reset.
    SetPolicy {
        /// Whose.
        sandbox: SandboxId,
        /// The whole of it.
        policy: NetworkPolicy,
        /// The most that the operator permits.
        leave: NetworkLeave,
    },
    /// Replace the private networks that a sandbox is a member of. Connections over those that it
    /// leaves are reset.
    SetNetworks {
        /// Whose.
        sandbox: SandboxId,
        /// All of them, and its alias in each.
        networks: BTreeMap<NetworkName, Alias>,
    },
    /// Replace what the rules of all sandboxes need. Descriptors of files come along: the secrets,
    /// the private key of the certificate authority that guests trust, and certificates of
    /// the authorities that servers' certificates are believed from.
    SetCredentials,
    /// Send nothing to the guest until [`Request::Release`], or for 50 ms; what the guest sends is
    /// taken as ever. Answered with the flows.
    Hold {
        /// Whose.
        sandbox: SandboxId,
    },
    /// End a hold.
    Release {
        /// Whose.
        sandbox: SandboxId,
    },
    /// What a child would inherit if the guest were branched now.
    Flows {
        /// Whose.
        sandbox: SandboxId,
    },
    /// Connect to a port of the guest. A stream's descriptor comes along with the answer.
    Dial {
        /// Whose.
        sandbox: SandboxId,
        /// Which port, on the guest's address.
        port: u16,
    },
}

/// A link and what it begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Whose link it is.
    pub sandbox: SandboxId,
    /// What members of its networks call it, besides its id.
    pub name: Option<String>,
    /// Whose secrets its rules name, and whose networks it is a member of.
    pub owner: Owner,
    /// What it may reach.
    pub policy: NetworkPolicy,
    /// The most that the operator permits.
    pub leave: NetworkLeave,
    /// The private networks that it is a member of, and its alias in each.
    pub networks: BTreeMap<NetworkName, Alias>,
    /// What the guest's memory believes to be open: connections are reset, queries are answered.
    pub inherited: Vec<Flow>,
    /// Whose answers of the resolver the guest may remember.
    pub parent: Option<SandboxId>,
}

/// Something that a guest waits for, and that its child waits for as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Flow {
    /// A TCP connection, in or out.
    Tcp(TcpFlow),
    /// A query to the resolver, by datagram, that is not answered yet.
    Query(InheritedQuery),
}

/// A TCP connection as the guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TcpFlow {
    /// The port of the guest.
    pub guest_port: u16,
    /// The other end.
    pub remote: IpAddr,
    /// The other end's port.
    pub remote_port: u16,
    /// The sequence number that the guest expects next from the other end.
    pub expected: u32,
    /// The sequence number behind the guest's own last byte.
    pub sent: u32,
}

/// A query as the guest has sent it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InheritedQuery {
    /// The port of the guest.
    pub guest_port: u16,
    /// The address that was asked, at port 53.
    pub remote: IpAddr,
    /// The message.
    #[serde(with = "serde_bytes")]
    pub message: Vec<u8>,
}

/// What the gateway answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done. The answer to `Dial` carries a descriptor.
    Done,
    /// To `Links`.
    Links(Vec<SandboxId>),
    /// To `Hold` and `Flows`.
    Flows(Vec<Flow>),
    /// To `Usage`.
    Usage(GatewayUsage),
    /// To `Watch`, any number of times.
    Notice(Notice),
    /// It is not done.
    Failed(Failure),
}

/// What the gateway has, and what has gone through it since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayUsage {
    /// Links of VMMs that live.
    pub links: u64,
    /// TCP connections that are open, in both directions.
    pub connections: u64,
    /// Flows that have ended: TCP connections, and pairs of addresses that exchanged datagrams.
    pub ended: u64,
    /// Flows that were allowed and failed.
    pub failed: u64,
    /// What was refused: flows, and names.
    pub refused: u64,
    /// Bytes that guests sent.
    pub bytes_out: u64,
    /// Bytes that guests got.
    pub bytes_in: u64,
}

/// What the gateway tells unasked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A sandbox was refused something. Told at once after a rest, and then as a sum at times.
    Refused {
        /// Whose.
        sandbox: SandboxId,
        /// How often since it was told last.
        times: u64,
    },
}

/// Why the gateway refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Failure {
    /// No such link.
    #[error("the gateway has no link of {0}")]
    NoLink(SandboxId),
    /// The sandbox has a link already.
    #[error("the gateway has a link of {0} already")]
    HasLink(SandboxId),
    /// No descriptor came along, or it is no datagram socket.
    #[error("the link of {sandbox} cannot be used: {why}")]
    BadLink {
        /// Whose.
        sandbox: SandboxId,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing listens there.
    #[error("nothing in the guest listens on port {0}")]
    PortClosed(u16),
    /// The guest has not answered in time.
    #[error("the guest does not answer on port {0}")]
    PortSilent(u16),
    /// As many connections as a sandbox may have.
    #[error("{0} has as many connections as it may have")]
    Full(SandboxId),
    /// A file that came along cannot be used.
    #[error("the gateway cannot use the {what}: {why}")]
    BadCredential {
        /// Which one.
        what: String,
        /// What is wrong with it, without its contents.
        why: String,
    },
    /// The request cannot be understood.
    #[error("the gateway does not understand the request: {0}")]
    BadRequest(String),
}
