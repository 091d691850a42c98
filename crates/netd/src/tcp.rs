//! All TCP connections of a link.
//!
//! ```text
//!  SYN --refused by the policy or a limit--------------> RST
//!   |
//!   v
//!  waiting --> dialling --failed----------------------> RST
//!                 |
//!                 v
//!              open: the SYN is answered now --> both sides joined --> ended, a line in the log
//! ```
//!
//! Guarantees: a guest that connects learns what the other end says, as soon as it says it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Instant;

use forkd_netd_protocol::TcpFlow;
use forkd_types::FlowOutcome;
use forkd_types::network::{DomainName, NetworkName, Protocol};
use smoltcp::iface::SocketSet;
use smoltcp::wire::IpListenEndpoint;
use tokio::task::AbortHandle;

use crate::context::{Event, Key, Shared};
use crate::flow::{Flow, FlowKey, Turn, socket};
use crate::gate::{Mode, Refusal};
use crate::host::{self, Stream};
use crate::journal::Entry;
use crate::limit::{DIALS_MAX, FLOWS_PER_SECOND, HALF_OPEN_MAX, Rate, TCP_FLOWS_MAX};
use crate::members;
use crate::names::NameCheck;
use crate::policy::{DNS_PORT, Rule, Verdict};
use crate::resolver;
use crate::totals::OpenConnection;
use crate::wire::Segment;

/// The connections of one link.
pub(crate) struct TcpTable {
    flows: HashMap<FlowKey, Open>,
    half_open: HashMap<FlowKey, HalfOpen>,
    /// Those of `half_open` that nobody dials yet.
    waiting: VecDeque<FlowKey>,
    timers: BTreeSet<(Instant, FlowKey)>,
    rate: Rate,
    attempts: u64,
}

struct Open {
    flow: Flow,
    /// Only names allow it.
    by_name: bool,
    timer: Option<Instant>,
    _counts: OpenConnection,
}

/// A connection that the guest wants.
struct HalfOpen {
    /// Its SYN, which is answered when the other end is there.
    syn: Syn,
    attempt: u64,
    to: Other,
    by_name: bool,
    rule: Rule,
    /// None while it waits for its turn.
    dialling: Option<AbortHandle>,
}

/// The first segment of a connection.
#[derive(Default)]
struct Syn {
    packet: Vec<u8>,
    /// Where the guest's own bytes begin.
    sent: u32,
}

/// The other end of it.
#[derive(Clone)]
enum Other {
    /// A socket of the host.
    Host(SocketAddr),
    /// Whoever is the member of this network that has the address.
    Member(NetworkName),
}

impl TcpTable {
    pub(crate) fn new() -> Self {
        Self {
            flows: HashMap::new(),
            half_open: HashMap::new(),
            waiting: VecDeque::new(),
            timers: BTreeSet::new(),
            rate: Rate::new(FLOWS_PER_SECOND, Instant::now()),
            attempts: 0,
        }
    }

    /// Takes a segment of the guest.
    pub(crate) fn ingest(&mut self, shared: &mut Shared, segment: &Segment<'_>) {
        let key = FlowKey { guest_port: segment.guest_port, remote: segment.remote };
        if let Some(open) = self.flows.get_mut(&key) {
            open.flow.sent = segment.sent;
            if let Some(expected) = segment.expected {
                open.flow.expected = expected;
                shared.remembered.add(key, &flow_of(key, &open.flow));
            }
            shared.stack.ingest(&mut shared.port, segment.packet, open.flow.sockets());
            open.flow.waker().wake_by_ref();
        } else if self.half_open.contains_key(&key) {
            // The guest repeats its SYN, or gives up.
            if segment.resets {
                self.drop_half_open(key);
                self.dial_next(shared);
            }
        } else if segment.opens {
            let syn = Syn { packet: segment.packet.to_vec(), sent: segment.sent };
            self.open(shared, key, syn);
        } else {
            reset(shared, segment.packet);
        }
    }

    fn open(&mut self, shared: &mut Shared, key: FlowKey, syn: Syn) {
        let limit = if !self.rate.permits(Instant::now()) {
            Some("new connections a second")
        } else if self.flows.len() + self.half_open.len() >= TCP_FLOWS_MAX {
            Some("connections")
        } else if self.half_open.len() >= HALF_OPEN_MAX {
            Some("connections that are not answered")
        } else {
            None
        };
        if let Some(limit) = limit {
            return refuse(shared, key, &syn, &Rule::Limit(limit));
        }
        if key.remote.port() == DNS_PORT {
            let waker = shared.ready.waker(Key::Tcp(key));
            match resolver::stream(shared) {
                Ok(stream) => self.join(shared, key, &syn, stream, waker, Rule::Resolver),
                Err(_) => reset(shared, &syn.packet),
            }
            return;
        }
        match shared.verdict(Protocol::Tcp, key.remote) {
            Verdict::Refused(rule) => refuse(shared, key, &syn, &rule),
            Verdict::Allowed { dial, by_name, rule } => {
                self.begin(shared, key, syn, Other::Host(dial), by_name, rule);
            }
            Verdict::Member(network) => {
                let rule = Rule::Network(network.clone());
                self.begin(shared, key, syn, Other::Member(network), false, rule);
            }
        }
    }

    fn begin(
        &mut self,
        shared: &mut Shared,
        key: FlowKey,
        syn: Syn,
        to: Other,
        by_name: bool,
        rule: Rule,
    ) {
        self.attempts += 1;
        let attempt = self.attempts;
        let wanted = HalfOpen { syn, attempt, to, by_name, rule, dialling: None };
        self.half_open.insert(key, wanted);
        self.waiting.push_back(key);
        self.dial_next(shared);
    }

    fn dial_next(&mut self, shared: &mut Shared) {
        while self.half_open.len() - self.waiting.len() < DIALS_MAX
            && let Some(key) = self.waiting.pop_front()
        {
            let Some(wanted) = self.half_open.get_mut(&key) else { continue };
            let dialling = match dial(shared, key, &wanted.to) {
                Ok(dialling) => dialling,
                Err(rule) => {
                    let syn = std::mem::take(&mut wanted.syn);
                    self.half_open.remove(&key);
                    refuse(shared, key, &syn, &rule);
                    continue;
                }
            };
            let (attempt, events) = (wanted.attempt, shared.events.clone());
            let task = tokio::spawn(async move {
                let stream = dialling.await;
                // The link may be gone.
                events.send(Event::Dialled { key, attempt, stream }).ok();
            });
            wanted.dialling = Some(task.abort_handle());
        }
    }

    fn drop_half_open(&mut self, key: FlowKey) {
        self.waiting.retain(|waiting| *waiting != key);
        if let Some(HalfOpen { dialling: Some(task), .. }) = self.half_open.remove(&key) {
            task.abort();
        }
    }

    /// The other end has answered.
    pub(crate) fn dialled(
        &mut self,
        shared: &mut Shared,
        key: FlowKey,
        attempt: u64,
        stream: io::Result<Stream>,
    ) {
        if self.half_open.get(&key).is_none_or(|wanted| wanted.attempt != attempt) {
            return;
        }
        let Some(wanted) = self.half_open.remove(&key) else { return };
        match stream {
            Ok(stream) => {
                let waker = shared.ready.waker(Key::Tcp(key));
                self.join(shared, key, &wanted.syn, stream, waker, wanted.rule);
                let mode = match wanted.to {
                    Other::Member(_) => None,
                    Other::Host(_) if wanted.by_name => Some(Mode::Names),
                    Other::Host(_) => (!shared.rules.headers().is_empty()).then_some(Mode::Rules),
                };
                if let (Some(mode), Some(open)) = (mode, self.flows.get_mut(&key)) {
                    open.flow.look(mode);
                    open.by_name = wanted.by_name;
                }
            }
            Err(error) => {
                let name = shared.name(key.remote);
                shared.journal.add(&Entry {
                    outcome: FlowOutcome::Failed,
                    protocol: Protocol::Tcp,
                    remote: Some(key.remote),
                    name: name.as_deref(),
                    reason: &error.kind().to_string(),
                    traffic: None,
                });
                reset(shared, &wanted.syn.packet);
            }
        }
        self.dial_next(shared);
    }

    /// Answers the SYN.
    fn join(
        &mut self,
        shared: &mut Shared,
        key: FlowKey,
        syn: &Syn,
        stream: Stream,
        waker: std::task::Waker,
        rule: Rule,
    ) {
        let mut socket = socket(self.flows.len());
        let end = IpListenEndpoint { addr: Some(key.remote.ip().into()), port: key.remote.port() };
        if socket.listen(end).is_err() {
            return reset(shared, &syn.packet);
        }
        let mut flow = Flow::new(socket, stream, waker, rule);
        flow.sent = syn.sent;
        shared.remembered.begin(key, &flow_of(key, &flow));
        shared.stack.ingest(&mut shared.port, &syn.packet, flow.sockets());
        self.add(shared, key, flow);
    }

    /// Takes a connection whose stack's side has been begun.
    pub(crate) fn add(&mut self, shared: &Shared, key: FlowKey, flow: Flow) {
        flow.waker().wake_by_ref();
        let counts = OpenConnection::new(&shared.totals);
        self.flows.insert(key, Open { flow, by_name: false, timer: None, _counts: counts });
    }

    /// How many there are, half open ones too.
    pub(crate) fn len(&self) -> usize {
        self.flows.len() + self.half_open.len()
    }

    /// Whether there is one by this key.
    pub(crate) fn contains(&self, key: FlowKey) -> bool {
        self.flows.contains_key(&key) || self.half_open.contains_key(&key)
    }

    /// The state of the stack's side.
    pub(crate) fn state(&self, key: FlowKey) -> Option<smoltcp::socket::tcp::State> {
        self.flows.get(&key).map(|open| open.flow.state())
    }

    /// Resets a connection.
    pub(crate) fn reset(&mut self, key: FlowKey) {
        if let Some(open) = self.flows.get_mut(&key) {
            open.flow.reset();
            open.flow.waker().wake_by_ref();
        }
    }

    /// Gives a connection its turn.
    pub(crate) fn turn(&mut self, shared: &mut Shared, key: FlowKey) {
        let Some(open) = self.flows.get_mut(&key) else { return };
        let Shared { port, stack, rules, pins, proxies, events, totals, .. } = shared;
        let (by_name, named, before) = (open.by_name, None, open.flow.carried());
        let mut names = NameCheck { rules, pins, proxies, events, key, by_name, named };
        let turn = open.flow.turn(stack, port, &mut names);
        let after = open.flow.carried();
        totals.carried(after.0 - before.0, after.1 - before.1);
        if names.named.is_some() {
            open.flow.name = names.named;
        }
        match turn {
            Turn::Ended => return self.end(shared, key, None),
            Turn::Refused(refusal) => return self.end(shared, key, Some(&refusal)),
            Turn::Goes => open.flow.waker().wake_by_ref(),
            Turn::Waits => {}
        }
        self.set_timer(shared, key);
    }

    fn set_timer(&mut self, shared: &mut Shared, key: FlowKey) {
        let Some(open) = self.flows.get_mut(&key) else { return };
        let next = shared.stack.next(open.flow.sockets());
        if let Some(timer) = open.timer.take() {
            self.timers.remove(&(timer, key));
        }
        // What cannot be sent now is sent when the VMM reads.
        if let Some(next) = next.filter(|_| shared.port.is_free()) {
            open.timer = Some(next);
            self.timers.insert((next, key));
        }
    }

    /// When the first connection has something to do by itself.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Wakes the connections whose time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, key));
            if let Some(open) = self.flows.get_mut(&key) {
                open.timer = None;
                open.flow.waker().wake_by_ref();
            }
        }
    }

    /// Wakes all, because the VMM reads again.
    pub(crate) fn wake_all(&self) {
        for open in self.flows.values() {
            open.flow.waker().wake_by_ref();
        }
    }

    fn end(&mut self, shared: &mut Shared, key: FlowKey, refusal: Option<&Refusal>) {
        let Some(Open { flow, timer, .. }) = self.flows.remove(&key) else { return };
        if let Some(timer) = timer {
            self.timers.remove(&(timer, key));
        }
        if flow.was_reset {
            shared.probe(flow_of(key, &flow));
        }
        if !shared.stale.contains(key) {
            shared.remembered.remove(key);
        }
        if flow.rule == Rule::Resolver {
            return;
        }
        let known = shared.name(key.remote);
        let (outcome, name, reason) = match (refusal, flow.broken) {
            (Some(Refusal::Name(name)), _) => {
                (FlowOutcome::Refused, Some(name.to_string()), Rule::Name.to_string())
            }
            (Some(Refusal::Plain(name)), _) => (
                FlowOutcome::Refused,
                Some(name.to_string()),
                "a host with header rules is reached by HTTPS only".to_owned(),
            ),
            (Some(Refusal::Unclear(why)), _) => (FlowOutcome::Refused, known, (*why).to_owned()),
            (None, Some(kind)) => (FlowOutcome::Failed, known, kind.to_string()),
            (None, None) => (
                FlowOutcome::Ended,
                flow.name.as_ref().map(ToString::to_string).or(known),
                flow.rule.to_string(),
            ),
        };
        shared.journal.add(&Entry {
            outcome,
            protocol: Protocol::Tcp,
            remote: Some(key.remote),
            name: name.as_deref(),
            reason: &reason,
            traffic: (outcome != FlowOutcome::Refused).then(|| flow.traffic()),
        });
    }

    /// Resets what the policy no longer permits.
    pub(crate) fn enforce(&mut self, shared: &mut Shared) {
        let keys: Vec<FlowKey> = self.flows.keys().chain(self.half_open.keys()).copied().collect();
        for key in keys {
            let kind = self.flows.get(&key).map(|open| &open.flow.rule);
            if kind == Some(&Rule::Inbound) {
                continue;
            }
            // The resolver's streams have the former policy.
            let stale = kind == Some(&Rule::Resolver);
            if let Some(kind @ (Rule::Network(_) | Rule::InboundNetwork(_))) = kind {
                if !still_joins(shared, key, kind) {
                    self.reset(key);
                }
                continue;
            }
            let verdict = shared.verdict(Protocol::Tcp, key.remote);
            let named = self.flows.get(&key).and_then(|open| open.flow.name.as_ref());
            let wants_member = self
                .half_open
                .get(&key)
                .is_some_and(|wanted| matches!(wanted.to, Other::Member(_)));
            let permitted = match &verdict {
                Verdict::Refused(_) => false,
                // What it is to be, or what it was about to be.
                Verdict::Member(_) => wants_member,
                Verdict::Allowed { .. } if wants_member => false,
                Verdict::Allowed { by_name: true, .. } => {
                    named.is_none_or(|name| shared.rules.allows_name(name, key.remote.port()))
                }
                Verdict::Allowed { .. } => true,
            };
            let stale = stale || self.ends_wrongly(shared, key);
            if permitted && !stale {
                continue;
            }
            let rule = if let Verdict::Refused(rule) = verdict { rule } else { Rule::Name };
            if let Some(wanted) = self.half_open.get_mut(&key) {
                let syn = std::mem::take(&mut wanted.syn);
                self.drop_half_open(key);
                refuse(shared, key, &syn, &rule);
            } else if let Some(open) = self.flows.get_mut(&key) {
                open.flow.reset();
                open.flow.waker().wake_by_ref();
                if !stale {
                    shared.log_refusal(Protocol::Tcp, key.remote, &rule);
                }
            }
        }
        self.dial_next(shared);
    }

    /// Whether the rules want a connection to end where it does not: in the gateway, or at the
    /// server. One whose name is not known may be any that its address has.
    fn ends_wrongly(&self, shared: &mut Shared, key: FlowKey) -> bool {
        let Some(open) = self.flows.get(&key) else { return false };
        let rules = shared.rules.headers();
        let has_rule = |name: &DomainName| rules.of(name).is_some();
        match &open.flow.name {
            Some(name) => has_rule(name) != open.flow.has_proxy(),
            // What was looked at and has none has no rules either.
            None if open.flow.was_looked_at() => false,
            None => shared.pins.names(key.remote.ip().to_canonical()).iter().any(has_rule),
        }
    }

    /// Notes that a request was refused.
    pub(crate) fn denied(shared: &mut Shared, key: FlowKey, name: &DomainName, reason: &str) {
        shared.journal.add(&Entry {
            outcome: FlowOutcome::Refused,
            protocol: Protocol::Tcp,
            remote: Some(key.remote),
            name: Some(name.as_str()),
            reason,
            traffic: None,
        });
    }

    /// What a child of the guest would believe to be open.
    pub(crate) fn list(&self) -> Vec<TcpFlow> {
        self.flows.iter().map(|(key, open)| flow_of(*key, &open.flow)).collect()
    }
}

impl Drop for TcpTable {
    fn drop(&mut self) {
        let dials = self.half_open.values().filter_map(|wanted| wanted.dialling.as_ref());
        dials.for_each(AbortHandle::abort);
        // The other ends must not take what they have for the whole.
        self.flows.values_mut().for_each(|open| open.flow.reset());
    }
}

fn flow_of(key: FlowKey, flow: &Flow) -> TcpFlow {
    TcpFlow {
        guest_port: key.guest_port,
        remote: key.remote.ip(),
        remote_port: key.remote.port(),
        expected: flow.expected,
        sent: flow.sent,
    }
}

/// A set without sockets knows no segment, and resets all.
pub(crate) fn reset(shared: &mut Shared, packet: &[u8]) {
    let mut none = SocketSet::new(Vec::new());
    shared.stack.ingest(&mut shared.port, packet, &mut none);
}

/// How the other end is dialled, or what refuses it.
fn dial(
    shared: &Shared,
    key: FlowKey,
    to: &Other,
) -> Result<Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>, Rule> {
    match to {
        // `host` is the one way to an own address, and it is a loopback address.
        Other::Host(dial) if !dial.ip().is_loopback() && host::is_own(dial.ip()) => {
            Err(Rule::Always("the host"))
        }
        Other::Host(dial) => Ok(Box::pin(host::dial(*dial))),
        Other::Member(network) => {
            let (members, remote) = (&shared.seat.members, key.remote);
            let nobody = || Rule::NoMember(network.clone());
            let door = members.door(remote.ip()).ok_or_else(nobody)?;
            let from = members.own_end(network, remote.ip(), key.guest_port);
            Ok(Box::pin(members::dial(door, network.clone(), from, remote.port())))
        }
    }
}

/// Whether both ends of a connection are still members, as far as this link knows.
fn still_joins(shared: &Shared, key: FlowKey, rule: &Rule) -> bool {
    let network = shared.seat.members.network_of(key.remote.ip());
    matches!(rule, Rule::Network(name) | Rule::InboundNetwork(name) if network == Some(name))
}

fn refuse(shared: &mut Shared, key: FlowKey, syn: &Syn, rule: &Rule) {
    shared.log_refusal(Protocol::Tcp, key.remote, rule);
    reset(shared, &syn.packet);
}
