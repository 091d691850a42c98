//! Connections to ports of the guest, which the daemon asks for, or another member of a network.
//!
//! A member comes from its own alias and, mostly, its own port: the server sees who it is. And what
//! the guest lets only the gateway do, no member can.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Instant;

use forkd_netd_protocol::Failure;
use forkd_types::SandboxId;
use forkd_types::network::GATEWAY_IPV4;
use smoltcp::socket::tcp::{ConnectError, State};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::context::{Key, Shared};
use crate::flow::{Flow, FlowKey, socket};
use crate::host::Stream;
use crate::limit::{INBOUND_DEADLINE, TCP_FLOWS_MAX};
use crate::member_stream::MemberStream;
use crate::members::Knock;
use crate::policy::Rule;
use crate::tcp::TcpTable;
use crate::wire;

/// Ports of the gateway from which it dials.
const FIRST_PORT: u16 = 32_768;

/// Who asked is told by this.
pub(crate) type Reply = oneshot::Sender<Result<OwnedFd, Failure>>;

/// Connections that the guest has not answered yet.
#[derive(Default)]
pub(crate) struct Inbound {
    pending: Vec<Pending>,
    last_port: u16,
}

struct Pending {
    key: FlowKey,
    deadline: Instant,
    asked: Asked,
}

/// Who waits for it, and the end of it that it gets.
enum Asked {
    Daemon(OwnedFd, Reply),
    Member(MemberStream, oneshot::Sender<io::Result<Stream>>),
}

impl Inbound {
    /// Begins a connection to a port of the guest.
    pub(crate) fn dial(
        &mut self,
        shared: &mut Shared,
        flows: &mut TcpTable,
        sandbox: &SandboxId,
        port: u16,
        reply: Reply,
    ) {
        // Nobody may wait any more: then there is nobody to tell.
        match self.begin(shared, flows, sandbox, port) {
            Ok((key, stream)) => self.wait_for(key, Asked::Daemon(stream, reply)),
            Err(failure) => drop(reply.send(Err(failure))),
        }
    }

    /// Begins a connection to a port of the guest for a member of a network, if this one still is.
    pub(crate) fn knock(&mut self, shared: &mut Shared, flows: &mut TcpTable, knock: Knock) {
        let Knock { network, from, port, reply } = knock;
        let is_member = shared.seat.members.network_of(from.ip()) == Some(&network);
        if !is_member || flows.len() >= TCP_FLOWS_MAX {
            // Who asked takes it for a refusal.
            return;
        }
        let mut key = FlowKey { guest_port: port, remote: from };
        if shared.stale.contains(key) || flows.contains(key) {
            key = self.free_key(shared, flows, port, from.ip());
        }
        let Ok((ours, theirs)) = MemberStream::pair() else { return };
        let rule = Rule::InboundNetwork(network);
        if connect(shared, flows, key, Stream::Member(ours), rule).is_ok() {
            self.wait_for(key, Asked::Member(theirs, reply));
        }
    }

    fn wait_for(&mut self, key: FlowKey, asked: Asked) {
        let deadline = Instant::now() + INBOUND_DEADLINE;
        self.pending.push(Pending { key, deadline, asked });
    }

    fn begin(
        &mut self,
        shared: &mut Shared,
        flows: &mut TcpTable,
        sandbox: &SandboxId,
        port: u16,
    ) -> Result<(FlowKey, OwnedFd), Failure> {
        let full = || Failure::Full(sandbox.clone());
        if flows.len() >= TCP_FLOWS_MAX {
            return Err(full());
        }
        let key = self.free_key(shared, flows, port, GATEWAY_IPV4.into());
        let (ours, theirs) = UnixStream::pair().map_err(|_| full())?;
        let theirs = theirs.into_std().map_err(|_| full())?;
        let closed = |_| Failure::PortClosed(port);
        connect(shared, flows, key, Stream::Unix(ours), Rule::Inbound).map_err(closed)?;
        Ok((key, theirs.into()))
    }

    fn free_key(
        &mut self,
        shared: &Shared,
        flows: &TcpTable,
        guest_port: u16,
        from: IpAddr,
    ) -> FlowKey {
        loop {
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_PORT);
            let remote = SocketAddr::new(from, self.last_port);
            let key = FlowKey { guest_port, remote };
            if !shared.stale.contains(key) && !flows.contains(key) {
                return key;
            }
        }
    }

    /// Tells those whose connection is there, or will not be.
    pub(crate) fn settle(&mut self, flows: &mut TcpTable, now: Instant) {
        for pending in std::mem::take(&mut self.pending) {
            let port = pending.key.guest_port;
            let told = match flows.state(pending.key) {
                None | Some(State::Closed) => Err(Failure::PortClosed(port)),
                Some(State::SynSent | State::SynReceived) if now < pending.deadline => {
                    self.pending.push(pending);
                    continue;
                }
                Some(State::SynSent | State::SynReceived) => {
                    flows.reset(pending.key);
                    Err(Failure::PortSilent(port))
                }
                Some(_) => Ok(()),
            };
            // Who has gone meanwhile closes the stream, and so the connection.
            match pending.asked {
                Asked::Daemon(stream, reply) => drop(reply.send(told.map(|()| stream))),
                Asked::Member(stream, reply) => {
                    let told = told.map(|()| Stream::Member(stream));
                    drop(reply.send(told.map_err(|failure| match failure {
                        Failure::PortSilent(_) => io::ErrorKind::TimedOut.into(),
                        _ => io::ErrorKind::ConnectionRefused.into(),
                    })));
                }
            }
        }
    }

    /// When the first deadline passes.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.deadline).min()
    }
}

/// Opens the stack's side of a connection to the guest.
fn connect(
    shared: &mut Shared,
    flows: &mut TcpTable,
    key: FlowKey,
    stream: Stream,
    rule: Rule,
) -> Result<(), ConnectError> {
    let mut socket = socket(flows.len());
    let guest = wire::guest(key.remote.ip());
    let context = shared.stack.interface().context();
    socket.connect(context, (guest, key.guest_port), key.remote)?;
    let waker = shared.ready.waker(Key::Tcp(key));
    flows.add(shared, key, Flow::new(socket, stream, waker, rule));
    Ok(())
}
