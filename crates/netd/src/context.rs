//! What all flows of a link share.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use forkd_netd_protocol::TcpFlow;
use tokio::sync::mpsc::UnboundedSender;

use crate::dns::{Answer, Source};
use crate::flow::FlowKey;
use crate::host::Stream;
use crate::journal::{Entry, Journal};
use crate::limit::Rate;
use crate::members::Seat;
use crate::pins::Pins;
use crate::policy::{Flow, Rule, Rules, Verdict};
use crate::port::Port;
use crate::proxy::Proxies;
use crate::ready::ReadyQueue;
use crate::remembered::Remembered;
use crate::stack::Stack;
use crate::stale::StaleTable;
use crate::totals::Totals;
use forkd_types::FlowOutcome;
use forkd_types::network::{DomainName, Protocol};
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// What has something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// A connection.
    Tcp(FlowKey),
    /// A pair of addresses that exchange datagrams; ICMP has the identifier for a port.
    Datagram(Protocol, FlowKey),
}

/// What a task beside the link has found out. Such tasks are bounded, and so are these.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection of the guest has another end, or none.
    Dialled {
        key: FlowKey,
        /// Which of the attempts with this key.
        attempt: u64,
        stream: io::Result<Stream>,
    },
    /// A request on a connection is refused.
    Denied { key: FlowKey, name: DomainName, reason: String },
    /// The resolver knows; `query` is a datagram that waits for it.
    Answered { query: Option<u64>, answer: Option<Answer> },
}

/// What all flows of a link share.
pub(crate) struct Shared {
    pub(crate) port: Port,
    pub(crate) stack: Stack,
    pub(crate) rules: Arc<Rules>,
    pub(crate) proxies: Proxies,
    pub(crate) pins: Pins,
    pub(crate) journal: Journal,
    pub(crate) remembered: Remembered,
    pub(crate) stale: StaleTable,
    pub(crate) totals: Arc<Totals>,
    pub(crate) ready: Arc<ReadyQueue<Key>>,
    pub(crate) events: UnboundedSender<Event>,
    /// Of queries, however they come.
    pub(crate) queries: Arc<Mutex<Rate>>,
    pub(crate) resolv_conf: Arc<Path>,
    /// What it knows of private networks.
    pub(crate) seat: Seat,
}

impl Shared {
    /// Probes a connection that the guest may believe in, until it is known not to.
    pub(crate) fn probe(&mut self, flow: TcpFlow) {
        self.stale.add(&mut self.port, &mut self.remembered, flow, Instant::now());
    }

    /// Decides about a flow.
    pub(crate) fn verdict(&mut self, protocol: Protocol, remote: SocketAddr) -> Verdict {
        if let Some(network) = self.seat.members.network_of(remote.ip()) {
            return match protocol {
                Protocol::Tcp => Verdict::Member(network.clone()),
                Protocol::Udp | Protocol::Icmp => {
                    Verdict::Refused(Rule::Always("a private network carries TCP only"))
                }
            };
        }
        let names = self.pins.names(remote.ip().to_canonical());
        self.rules.verdict(Flow { protocol, remote, names })
    }

    /// Notes a refusal.
    pub(crate) fn log_refusal(&mut self, protocol: Protocol, remote: SocketAddr, rule: &Rule) {
        let name = self.name(remote);
        self.journal.add(&Entry {
            outcome: FlowOutcome::Refused,
            protocol,
            remote: Some(remote),
            name: name.as_deref(),
            reason: &rule.to_string(),
            traffic: None,
        });
    }

    /// A name that the guest knows this address by.
    pub(crate) fn name(&mut self, remote: SocketAddr) -> Option<String> {
        let member = self.seat.members.host_name(remote.ip());
        let known = || self.pins.names(remote.ip().to_canonical()).last().map(ToString::to_string);
        member.or_else(known)
    }

    /// What the resolver answers from.
    pub(crate) fn source(&self) -> Source {
        Source {
            rules: Arc::clone(&self.rules),
            host_name: self.seat.sandbox.clone(),
            members: self.seat.members.clone(),
            resolv_conf: Arc::clone(&self.resolv_conf),
        }
    }
}

/// Whether one more query is permitted now.
pub(crate) fn permits_query(queries: &Mutex<Rate>) -> bool {
    queries.lock().unwrap_or_else(PoisonError::into_inner).permits(Instant::now())
}
