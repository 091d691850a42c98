//! One TCP connection: the stack's socket towards the guest on one side, a socket of the host or
//! the resolver on the other.
//!
//! Guarantees: bytes are read from one side only when the other has room, so a slow reader is felt
//! by the writer. Each direction ends by itself: the end of one is passed on, the other goes on. A
//! reset is passed on as a reset.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Waker};
use std::time::Instant;

use forkd_netd_protocol::Traffic;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, RecvError, State};

use crate::gate::{Decision, Ended, Gate, Mode, Refusal};
use crate::host::Stream;
use crate::limit::{BYTES_PER_TURN, buffer_bytes};
use crate::policy::Rule;
use crate::port::Port;
use crate::proxy::Proxy;
use crate::stack::Stack;
use forkd_types::network::DomainName;
use tokio::net::UnixStream;

/// What names a connection of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FlowKey {
    pub(crate) guest_port: u16,
    pub(crate) remote: SocketAddr,
}

/// What comes of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for either side.
    Waits,
    /// It has more to do.
    Goes,
    /// It has ended.
    Ended,
    /// Its first bytes are not allowed; it is reset.
    Refused(Refusal),
}

/// Who knows what the names in a connection's first bytes mean.
pub(crate) trait Names {
    /// What becomes of a connection with this name.
    fn decide(&mut self, name: &DomainName) -> Decision;

    /// Ends a connection in the gateway: `guest` is the proxy's end of it.
    fn end(
        &mut self,
        ended: Ended,
        guest: UnixStream,
        server: Stream,
    ) -> Result<(Proxy, Rule), Refusal>;
}

/// A connection whose ends both exist.
pub(crate) struct Flow {
    pub(crate) rule: Rule,
    pub(crate) name: Option<DomainName>,
    /// What went wrong on the host's side.
    pub(crate) broken: Option<io::ErrorKind>,
    /// What the guest expects next, as its last segment said.
    pub(crate) expected: u32,
    /// Where the guest's own bytes end.
    pub(crate) sent: u32,
    /// It was reset from this side: the guest may not have heard of it.
    pub(crate) was_reset: bool,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    host: Stream,
    gate: Option<Gate>,
    /// The guest's last bytes, which the host has not taken while the stack has ended.
    rest: Vec<u8>,
    looked_at: bool,
    /// Between this and the server, to which there is then another connection.
    proxy: Option<Proxy>,
    waker: Waker,
    opened: Instant,
    bytes_out: u64,
    bytes_in: u64,
    guest_finished: bool,
    host_finished: bool,
}

/// The stack's side of a connection before there is another one.
pub(crate) fn socket(flows: usize) -> tcp::Socket<'static> {
    let bytes = buffer_bytes(flows);
    // Zeroed memory is not touched before it is used.
    let buffer = || tcp::SocketBuffer::new(vec![0; bytes]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    // Both sides know best when to send.
    socket.set_nagle_enabled(false);
    socket.set_ack_delay(None);
    socket
}

impl Flow {
    /// Joins a socket that listens or connects with the host's side.
    pub(crate) fn new(
        socket: tcp::Socket<'static>,
        host: Stream,
        waker: Waker,
        rule: Rule,
    ) -> Self {
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self {
            rule,
            name: None,
            broken: None,
            expected: 0,
            sent: 0,
            was_reset: false,
            sockets,
            handle,
            host,
            gate: None,
            rest: Vec::new(),
            looked_at: false,
            proxy: None,
            waker,
            opened: Instant::now(),
            bytes_out: 0,
            bytes_in: 0,
            guest_finished: false,
            host_finished: false,
        }
    }

    /// Looks at the first bytes before they are passed on.
    pub(crate) fn look(&mut self, mode: Mode) {
        self.gate = Some(Gate::new(mode));
        self.looked_at = true;
    }

    /// Whether they are, or were.
    pub(crate) fn was_looked_at(&self) -> bool {
        self.looked_at
    }

    /// Whether the gateway ends it.
    pub(crate) fn has_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    /// What wakes it.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Bytes that it has carried so far, from and to the guest.
    pub(crate) const fn carried(&self) -> (u64, u64) {
        (self.bytes_out, self.bytes_in)
    }

    /// What it has carried.
    pub(crate) fn traffic(&self) -> Traffic {
        let ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        Traffic { bytes_out: self.bytes_out, bytes_in: self.bytes_in, ms }
    }

    /// The sockets of the stack, for one of its segments.
    pub(crate) fn sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.sockets
    }

    pub(crate) fn state(&self) -> State {
        self.sockets.get::<tcp::Socket<'_>>(self.handle).state()
    }

    /// Resets both sides.
    pub(crate) fn reset(&mut self) {
        self.was_reset = true;
        self.sockets.get_mut::<tcp::Socket<'_>>(self.handle).abort();
        self.host.reset_on_close();
    }

    /// Passes on what there is, and sends what the stack has ready.
    pub(crate) fn turn(
        &mut self,
        stack: &mut Stack,
        port: &mut Port,
        names: &mut impl Names,
    ) -> Turn {
        let before = self.bytes_out + self.bytes_in;
        let mut refused = None;
        let is_open = !matches!(
            self.state(),
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        );
        if is_open || !self.rest.is_empty() {
            match self.pass_on(names) {
                Ok(()) => {}
                Err(Stop::Refused(refusal)) => refused = Some(refusal),
                Err(Stop::Broken(kind)) => self.broken = Some(kind),
            }
            if refused.is_some() || self.broken.is_some() {
                self.reset();
            }
            self.keep_rest();
        }
        while stack.egress(port, &mut self.sockets) {}
        if let Some(refusal) = refused {
            return Turn::Refused(refusal);
        }
        let blocked = !port.is_free();
        match self.state() {
            _ if !self.rest.is_empty() && self.broken.is_none() => Turn::Waits,
            State::Closed if !blocked || stack.next(&self.sockets).is_none() => {
                if !(self.guest_finished && self.host_finished) {
                    self.host.reset_on_close();
                }
                Turn::Ended
            }
            // The guest has all, and so has the host: nobody needs to wait for stray segments.
            State::TimeWait if !blocked && self.guest_finished => Turn::Ended,
            _ if self.bytes_out + self.bytes_in - before >= bytes_per_turn() => Turn::Goes,
            _ => Turn::Waits,
        }
    }

    /// Takes over what the host has not read when both ends are told: the stack forgets it.
    fn keep_rest(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let (rest, may_pass) = (&mut self.rest, self.gate.is_none() && self.broken.is_none());
        // The buffer is a ring: its content may be in two pieces.
        while may_pass && socket.state() == State::TimeWait && socket.recv_queue() > 0 {
            let taken = socket.recv(|bytes| {
                rest.extend_from_slice(bytes);
                (bytes.len(), ())
            });
            if taken.is_err() {
                break;
            }
        }
    }

    fn pass_on(&mut self, names: &mut impl Names) -> Result<(), Stop> {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(&waker);
        self.pass_out(&mut context, names)?;
        self.pass_in(&mut context, names)?;
        // An answer may open the gate.
        if self.gate.is_some() {
            self.pass_out(&mut context, names)?;
        }
        Ok(())
    }

    fn pass_out(&mut self, context: &mut Context<'_>, names: &mut impl Names) -> Result<(), Stop> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let mut passed = 0;
        while passed < bytes_per_turn() && !self.guest_finished {
            let step = match &mut self.gate {
                None if !self.rest.is_empty() => {
                    let (written, step) = write(&self.host, context, &self.rest);
                    self.rest.drain(..written);
                    if self.rest.is_empty() {
                        // The guest's end is behind it.
                        self.guest_finished = true;
                        self.host.finish();
                    }
                    Ok(step)
                }
                None => socket.recv(|bytes| write(&self.host, context, bytes)),
                Some(gate) => {
                    let fed = feed(gate, socket, names)?;
                    if let Some(ended) = gate.take_ended() {
                        let (ours, guest) =
                            UnixStream::pair().map_err(|e| Stop::Broken(e.kind()))?;
                        let server = std::mem::replace(&mut self.host, Stream::Unix(ours));
                        let (proxy, rule) =
                            names.end(ended, guest, server).map_err(Stop::Refused)?;
                        (self.proxy, self.rule) = (Some(proxy), rule);
                    }
                    through(gate, fed, &self.host, context)?
                }
            };
            match step {
                Ok(Written::Bytes(bytes)) => {
                    passed += u64::try_from(bytes).unwrap_or(0);
                    if self.gate.as_ref().is_some_and(Gate::is_open) {
                        self.gate = None;
                    }
                }
                Ok(Written::Nothing) => break,
                Ok(Written::Failed(kind)) => return Err(Stop::Broken(kind)),
                Err(RecvError::Finished) => {
                    self.guest_finished = true;
                    self.host.finish();
                }
                Err(RecvError::InvalidState) => break,
            }
        }
        self.bytes_out += passed;
        Ok(())
    }

    fn pass_in(&mut self, context: &mut Context<'_>, names: &mut impl Names) -> Result<(), Stop> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let (host, mut passed) = (&self.host, 0);
        while passed < bytes_per_turn() && !self.host_finished && socket.can_send() {
            let gate = &mut self.gate;
            let read = socket.send(|room| match host.read(context, room) {
                Ok(bytes) => {
                    let looked = match gate {
                        Some(gate) => gate.answer(&room[..bytes], |name| names.decide(name)),
                        None => Ok(()),
                    };
                    (bytes, looked.map(|()| Ok(bytes)))
                }
                Err(error) => (0, Ok(Err(error.kind()))),
            });
            match read.map_err(|_| Stop::Broken(io::ErrorKind::NotConnected))? {
                Err(refusal) => return Err(Stop::Refused(refusal)),
                Ok(Ok(0)) => self.host_finished = true,
                Ok(Ok(bytes)) => passed += u64::try_from(bytes).unwrap_or(0),
                Ok(Err(io::ErrorKind::WouldBlock)) => break,
                Ok(Err(kind)) => return Err(Stop::Broken(kind)),
            }
        }
        self.bytes_in += passed;
        // Not before the guest has all: in the state that follows, the stack does not hear that a
        // guest which was full reads again. Nor before the host has all of a guest that has ended:
        // with the last acknowledgement the connection is no more.
        let host_has_all = self.guest_finished || socket.state() != State::CloseWait;
        if self.host_finished && host_has_all && socket.may_send() && socket.send_queue() == 0 {
            socket.close();
        }
        Ok(())
    }
}

fn bytes_per_turn() -> u64 {
    u64::try_from(BYTES_PER_TURN).unwrap_or(u64::MAX)
}

/// Why a connection does not go on.
enum Stop {
    Refused(Refusal),
    Broken(io::ErrorKind),
}

enum Written {
    Bytes(usize),
    /// The host's side is full, or there is nothing to write.
    Nothing,
    Failed(io::ErrorKind),
}

fn write(host: &Stream, context: &mut Context<'_>, bytes: &[u8]) -> (usize, Written) {
    if bytes.is_empty() {
        return (0, Written::Nothing);
    }
    match host.write(context, bytes) {
        Ok(bytes) => (bytes, Written::Bytes(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, Written::Nothing),
        Err(error) => (0, Written::Failed(error.kind())),
    }
}

/// What the gate got.
struct Fed {
    bytes: usize,
    /// Nothing more comes.
    end: Option<RecvError>,
}

/// Gives the gate what the guest has sent.
fn feed(
    gate: &mut Gate,
    socket: &mut tcp::Socket<'_>,
    names: &mut impl Names,
) -> Result<Fed, Stop> {
    let room = gate.room();
    let looked = socket.recv(|bytes| {
        let bytes = &bytes[..bytes.len().min(room)];
        (bytes.len(), gate.feed(bytes, |name| names.decide(name)).map(|()| bytes.len()))
    });
    match looked {
        Ok(looked) => Ok(Fed { bytes: looked.map_err(Stop::Refused)?, end: None }),
        Err(end) => Ok(Fed { bytes: 0, end: Some(end) }),
    }
}

/// As [`write`], by way of the gate.
fn through(
    gate: &mut Gate,
    fed: Fed,
    host: &Stream,
    context: &mut Context<'_>,
) -> Result<Result<Written, RecvError>, Stop> {
    match fed.end {
        Some(RecvError::Finished) if gate.passed().is_empty() => {
            gate.finish().map_err(Stop::Refused)?;
        }
        None | Some(RecvError::Finished) => {}
        Some(end) => return Ok(Err(end)),
    }
    let (written, step) = write(host, context, gate.passed());
    gate.consume(written);
    let nothing_held = matches!(step, Written::Nothing) && gate.passed().is_empty();
    Ok(match fed.end {
        Some(end) if nothing_held => Err(end),
        // What was taken may be followed by more.
        _ if nothing_held && fed.bytes > 0 => Ok(Written::Bytes(0)),
        _ => Ok(step),
    })
}
