//! The task that owns one link: everything that a sandbox sends and gets.
//!
//! Guarantees: each turn is bounded in work and in time, and then requests are heard and another
//! link gets the thread, however much the guest sends or is sent. Nothing that a guest
//! sends ends the task. While the link is held nothing is written to it, for 50 ms at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forkd_netd_protocol::{Attach, Flow, InheritedQuery, register};
use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkName};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::context::{Event, Key, Shared};
use crate::datagram::DatagramTable;
use crate::flow::FlowKey;
use crate::inbound::{self, Inbound};
use crate::journal::Journal;
use crate::limit::{HOLD_MAX, KNOCKS_QUEUED, QUERIES_PER_SECOND, Rate, TurnShare};
use crate::members::{Directory, Knock, Seat};
use crate::pins::Pins;
use crate::policy::{DNS_PORT, Rules};
use crate::port::Port;
use crate::proxy::{Credentials, Proxies};
use crate::ready::ReadyQueue;
use crate::remembered::Remembered;
use crate::resolver::Resolver;
use crate::stack::Stack;
use crate::stale::StaleTable;
use crate::tcp::TcpTable;
use crate::totals::Totals;
use crate::wire::{self, ETHERNET_BYTES, Packet};

/// The largest datagram that the kernel passes on a link.
const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + 65_536;

thread_local! {
    /// Where frames are read: one for all links of a thread, so that idle ones cost little.
    static FRAME: RefCell<Vec<u8>> = RefCell::new(vec![0; FRAME_BYTES_MAX]);
}

/// What the daemon asks of one link.
pub(crate) enum Command {
    SetPolicy(Box<Rules>, oneshot::Sender<()>),
    Hold(oneshot::Sender<Vec<Flow>>),
    Release(oneshot::Sender<()>),
    Flows(oneshot::Sender<Vec<Flow>>),
    Pins(oneshot::Sender<Pins>),
    Dial(u16, inbound::Reply),
    SetNetworks(BTreeMap<NetworkName, Alias>, oneshot::Sender<()>),
}

/// A link and all that goes over it.
pub(crate) struct Link {
    sandbox: SandboxId,
    shared: Shared,
    /// Readable when the VMM has ended.
    vmm: AsyncFd<OwnedFd>,
    tcp: TcpTable,
    datagrams: DatagramTable,
    resolver: Resolver,
    inbound: Inbound,
    commands: mpsc::Receiver<Command>,
    events: mpsc::UnboundedReceiver<Event>,
    /// Other members of its networks want to connect.
    knocks: mpsc::Receiver<Knock>,
    held_until: Option<Instant>,
    /// Something waited for the VMM to read.
    blocked: bool,
}

/// Where links find what they need of the host and the daemon.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) logs: Arc<Path>,
    pub(crate) resolv_conf: Arc<Path>,
    /// Of all links.
    pub(crate) totals: Arc<Totals>,
}

impl Link {
    /// Takes a link over. What the guest inherits is probed at once.
    pub(crate) fn new(
        attach: Attach,
        socket: OwnedFd,
        vmm: OwnedFd,
        pins: Pins,
        places: &Places,
        commands: mpsc::Receiver<Command>,
    ) -> io::Result<Self> {
        let Attach { sandbox, name, owner, policy, leave, networks, inherited, .. } = attach;
        let rules = watch::Sender::new(policy.rules.clone());
        let (credentials, counted) = (places.credentials.clone(), Arc::new(()));
        let (sender, events) = mpsc::unbounded_channel();
        let directory = &places.directory;
        let (seat, knocks) = Seat::take(directory, sandbox.clone(), name, owner.clone(), networks);
        let (folder, totals) = (places.logs.join(sandbox.as_str()), Arc::clone(&places.totals));
        let shared = Shared {
            port: Port::new(socket)?,
            stack: Stack::new(),
            rules: Arc::new(Rules::new(policy, leave)),
            pins,
            proxies: Proxies { rules, owner, credentials, counted },
            journal: Journal::new(sandbox.clone(), &folder, Arc::clone(&totals)),
            remembered: Remembered::new(folder),
            stale: StaleTable::default(),
            totals,
            ready: Arc::new(ReadyQueue::default()),
            events: sender,
            queries: Arc::new(Mutex::new(Rate::new(QUERIES_PER_SECOND, Instant::now()))),
            resolv_conf: places.resolv_conf.clone(),
            seat,
        };
        let mut link = Self {
            sandbox,
            shared,
            vmm: register(vmm)?,
            tcp: TcpTable::new(),
            datagrams: DatagramTable::default(),
            resolver: Resolver::default(),
            inbound: Inbound::default(),
            commands,
            events,
            knocks,
            held_until: None,
            blocked: false,
        };
        for flow in inherited {
            match flow {
                Flow::Tcp(flow) => link.shared.probe(flow),
                Flow::Query(query) => link.resolver.ask(&mut link.shared, query),
            }
        }
        link.shared.remembered.begun();
        Ok(link)
    }

    /// Serves the link until it is let go or its VMM has ended.
    pub(crate) async fn run(mut self) {
        let mut more = true;
        while !self.shared.port.is_closed() {
            let next = self.next_timer();
            let sleep = async {
                match next {
                    Some(next) => sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                // Whatever it is, nothing more comes from there.
                _ = self.vmm.readable() => return,
                () = std::future::ready(()), if more => {}
                Some(event) = self.events.recv() => self.take(event),
                Some(knock) = self.knocks.recv() => self.hear(knock),
                () = self.shared.port.readable(), if self.shared.port.has_room() => {}
                () = self.shared.port.writable() => {}
                () = self.shared.ready.wait() => {}
                () = sleep => {}
            }
            more = self.turn();
            if more {
                // Frames that are there keep the wait above from ever being one.
                tokio::task::yield_now().await;
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        [
            self.held_until,
            self.tcp.next_timer(),
            self.datagrams.next_timer(),
            self.inbound.next_timer(),
            self.shared.stale.next_timer(),
            self.shared.journal.next(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what there is to do; whether there is more.
    fn turn(&mut self) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        // A link that always has something to do would not come to wait for them.
        for _ in 0..KNOCKS_QUEUED {
            let Ok(knock) = self.knocks.try_recv() else { break };
            self.hear(knock);
        }
        self.expire(Instant::now());
        self.shared.port.flush();
        if self.blocked && self.shared.port.is_free() {
            self.tcp.wake_all();
            self.datagrams.wake_all();
        }
        let more_frames = FRAME.with_borrow_mut(|frame| self.receive(frame));
        self.serve_flows();
        self.inbound.settle(&mut self.tcp, Instant::now());
        self.blocked = !self.shared.port.is_free();
        more_frames || !self.shared.ready.is_empty()
    }

    /// Takes what the guest has sent; whether there may be more.
    fn receive(&mut self, frame: &mut [u8]) -> bool {
        let mut share = TurnShare::new(Instant::now());
        while share.permits(Instant::now()) {
            let has_room = self.shared.port.has_room();
            let bytes = has_room.then(|| self.shared.port.receive(frame)).flatten();
            let Some(bytes) = bytes else { return false };
            self.ingest(&frame[..bytes]);
        }
        true
    }

    /// Gives flows that have something to do their turn.
    fn serve_flows(&mut self) {
        let mut share = TurnShare::new(Instant::now());
        // One that is woken by its turn waits for the link's next one.
        for _ in 0..self.shared.ready.len() {
            if !share.permits(Instant::now()) {
                return;
            }
            match self.shared.ready.take() {
                Some(Key::Tcp(key)) => self.tcp.turn(&mut self.shared, key),
                Some(Key::Datagram(protocol, key)) => {
                    self.datagrams.turn(&mut self.shared, protocol, key);
                }
                None => return,
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.release();
        }
        self.tcp.expire(now);
        self.datagrams.expire(&mut self.shared, now);
        self.shared.stale.expire(&mut self.shared.port, now);
        if self.shared.journal.next().is_some_and(|at| at <= now) {
            self.shared.journal.write_counted();
        }
    }

    fn ingest(&mut self, frame: &[u8]) {
        match wire::parse(frame) {
            Some(Packet::Tcp(segment)) => {
                let Some(key) = key(segment.guest_port, segment.remote) else { return };
                let Shared { stale, remembered, .. } = &mut self.shared;
                if segment.opens || segment.resets {
                    stale.forget(remembered, key);
                }
                self.tcp.ingest(&mut self.shared, &segment);
                self.shared.stale.answered(key, Instant::now());
            }
            Some(Packet::Udp { guest_port, remote, payload, .. }) if remote.port() == DNS_PORT => {
                let (remote, message) = (remote.ip(), payload.to_vec());
                let query = InheritedQuery { guest_port, remote, message };
                self.resolver.ask(&mut self.shared, query);
            }
            Some(Packet::Udp { guest_port, remote, payload, packet }) => {
                let key = FlowKey { guest_port, remote };
                self.datagrams.udp(&mut self.shared, key, payload, packet);
            }
            Some(Packet::Echo(echo)) => self.datagrams.echo(&mut self.shared, echo),
            Some(Packet::WhoHas(answer)) => self.shared.port.send(&answer),
            None => {}
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Dialled { key, attempt, stream } => {
                self.tcp.dialled(&mut self.shared, key, attempt, stream);
            }
            Event::Denied { key, name, reason } => {
                TcpTable::denied(&mut self.shared, key, &name, &reason);
            }
            Event::Answered { query, answer } => {
                self.resolver.answered(&mut self.shared, query, answer);
            }
        }
    }

    fn hear(&mut self, knock: Knock) {
        self.inbound.knock(&mut self.shared, &mut self.tcp, knock);
    }

    /// Who asked may be gone; then nobody needs to be told.
    fn obey(&mut self, command: Command) {
        match command {
            Command::SetPolicy(rules, reply) => {
                self.shared.rules = Arc::from(rules);
                self.shared.proxies.rules.send_replace(self.shared.rules.headers().clone());
                self.tcp.enforce(&mut self.shared);
                self.datagrams.enforce(&mut self.shared);
                reply.send(()).ok();
            }
            Command::Hold(reply) => {
                self.shared.port.hold(true);
                self.held_until = Some(Instant::now() + HOLD_MAX);
                reply.send(self.flows()).ok();
            }
            Command::Release(reply) => {
                self.release();
                reply.send(()).ok();
            }
            Command::Flows(reply) => drop(reply.send(self.flows())),
            Command::Pins(reply) => drop(reply.send(self.shared.pins.clone())),
            Command::SetNetworks(networks, reply) => {
                self.shared.seat.set(networks);
                self.tcp.enforce(&mut self.shared);
                self.datagrams.enforce(&mut self.shared);
                reply.send(()).ok();
            }
            Command::Dial(port, reply) => {
                let Self { shared, tcp, inbound, sandbox, .. } = self;
                inbound.dial(shared, tcp, sandbox, port, reply);
            }
        }
    }

    fn release(&mut self) {
        self.held_until = None;
        self.blocked |= self.shared.port.is_held();
        self.shared.port.hold(false);
    }

    fn flows(&self) -> Vec<Flow> {
        let connections = self.tcp.list().into_iter().chain(self.shared.stale.list());
        connections.map(Flow::Tcp).chain(self.resolver.list().map(Flow::Query)).collect()
    }
}

/// What the stack would not take, nobody takes.
fn key(guest_port: u16, remote: std::net::SocketAddr) -> Option<FlowKey> {
    let usable = !remote.ip().is_unspecified() && !remote.ip().is_multicast();
    usable.then_some(FlowKey { guest_port, remote })
}
