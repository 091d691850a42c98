//! Datagrams and echo requests: one socket of the host for each pair of addresses.
//!
//! Guarantees: what the policy refuses is answered with "port unreachable" at once, which a program
//! sees as `ECONNREFUSED`. While the VMM does not read, nothing is read for it.
//!
//! Does not do: datagrams above the link's MTU, fragments, answers from another address than the
//! one that was spoken to.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use forkd_netd_protocol::Traffic;
use forkd_types::FlowOutcome;
use forkd_types::network::{LINK_MTU, Protocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use tokio::io::{Interest, Ready};
use tokio::net::UdpSocket;

use crate::context::{Key, Shared};
use crate::flow::FlowKey;
use crate::journal::Entry;
use crate::limit::{DATAGRAM_FLOWS_MAX, DATAGRAM_IDLE, WORK_PER_TURN};
use crate::policy::{Rule, Verdict};
use crate::wire::{self, Echo};

/// Of a packet, what an ICMP error has to repeat: the headers.
const HEADER_BYTES_MAX: usize = 68;
const ICMP_HEADER_BYTES: usize = 8;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_IPV6: u8 = 128;
/// How often idle ones are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// Pairs of addresses that exchange datagrams.
#[derive(Default)]
pub(crate) struct DatagramTable {
    flows: HashMap<(Protocol, FlowKey), Pair>,
    next_sweep: Option<Instant>,
}

struct Pair {
    socket: Arc<UdpSocket>,
    /// Something has come: a datagram, or an error such as "port unreachable".
    arrival: Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>>,
    waker: Waker,
    rule: Rule,
    opened: Instant,
    used: Instant,
    bytes_out: u64,
    bytes_in: u64,
    /// The headers of the guest's last packet, for an error that it causes.
    sent: Vec<u8>,
}

impl DatagramTable {
    /// Takes a datagram of the guest.
    pub(crate) fn udp(&mut self, shared: &mut Shared, key: FlowKey, payload: &[u8], packet: &[u8]) {
        if self.send(shared, Protocol::Udp, key, payload, packet).is_err()
            && let Some(frame) = wire::unreachable(packet)
        {
            shared.port.send(&frame);
        }
    }

    /// Takes a request for an echo.
    pub(crate) fn echo(&mut self, shared: &mut Shared, echo: Echo<'_>) {
        if echo.remote == wire::gateway(echo.remote) {
            shared.port.send(&wire::echo_reply(echo));
            return;
        }
        let kind = if echo.remote.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_IPV6 };
        // The kernel fills in the checksum and an identifier of its own.
        let mut message = vec![kind, 0, 0, 0, 0, 0];
        message.extend_from_slice(&echo.sequence.to_be_bytes());
        message.extend_from_slice(echo.data);
        let remote = SocketAddr::new(echo.remote, 0);
        let key = FlowKey { guest_port: echo.ident, remote };
        // There is no answer that says "refused"; the log says it.
        self.send(shared, Protocol::Icmp, key, &message, &[]).ok();
    }

    fn send(
        &mut self,
        shared: &mut Shared,
        protocol: Protocol,
        key: FlowKey,
        payload: &[u8],
        packet: &[u8],
    ) -> io::Result<()> {
        if !self.flows.contains_key(&(protocol, key)) {
            let pair = self.open(shared, protocol, key)?;
            self.flows.insert((protocol, key), pair);
            self.next_sweep.get_or_insert_with(|| Instant::now() + SWEEP);
        }
        let Some(pair) = self.flows.get_mut(&(protocol, key)) else { return Ok(()) };
        pair.used = Instant::now();
        pair.sent = packet[..packet.len().min(HEADER_BYTES_MAX)].to_vec();
        pair.waker.wake_by_ref();
        // Past the runtime, which does not know yet that a socket of this moment can be written.
        match rustix::net::send(&*pair.socket, payload, SendFlags::DONTWAIT) {
            Ok(bytes) => {
                let bytes = u64::try_from(bytes).unwrap_or(0);
                pair.bytes_out += bytes;
                shared.totals.carried(bytes, 0);
            }
            Err(Errno::CONNREFUSED) => return Err(Errno::CONNREFUSED.into()),
            // A full socket drops datagrams as any network does.
            Err(error) => tracing::trace!(%error, "a datagram is dropped"),
        }
        Ok(())
    }

    fn open(&mut self, shared: &mut Shared, protocol: Protocol, key: FlowKey) -> io::Result<Pair> {
        let verdict = shared.verdict(protocol, key.remote);
        let mut refused = |rule: &Rule| {
            shared.log_refusal(protocol, key.remote, rule);
            Err(io::ErrorKind::ConnectionRefused.into())
        };
        if self.flows.len() >= DATAGRAM_FLOWS_MAX {
            return refused(&Rule::Limit("pairs that exchange datagrams"));
        }
        let (dial, rule) = match verdict {
            Verdict::Allowed { by_name: false, dial, rule } => (dial, rule),
            Verdict::Allowed { by_name: true, .. } => return refused(&Rule::Name),
            Verdict::Member(network) => return refused(&Rule::NoMember(network)),
            Verdict::Refused(rule) => return refused(&rule),
        };
        let socket = bind(protocol, dial.ip())?;
        socket.connect(dial)?;
        if socket.local_addr()?.ip() == dial.ip() && !dial.ip().is_loopback() {
            return refused(&Rule::Always("the host"));
        }
        socket.set_nonblocking(true)?;
        let now = Instant::now();
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        Ok(Pair {
            arrival: arrival(&socket),
            socket,
            waker: shared.ready.waker(Key::Datagram(protocol, key)),
            rule,
            opened: now,
            used: now,
            bytes_out: 0,
            bytes_in: 0,
            sent: Vec::new(),
        })
    }

    /// Passes on what has come for the guest.
    pub(crate) fn turn(&mut self, shared: &mut Shared, protocol: Protocol, key: FlowKey) {
        let Some(pair) = self.flows.get_mut(&(protocol, key)) else { return };
        let waker = pair.waker.clone();
        let mut context = Context::from_waker(&waker);
        let mut buffer = vec![0; LINK_MTU];
        for _ in 0..WORK_PER_TURN {
            if !shared.port.is_free() {
                // Woken when the VMM reads again.
                return;
            }
            let mut receive = || {
                let flags = RecvFlags::DONTWAIT;
                Ok(rustix::net::recv(&*pair.socket, &mut buffer[..], flags)?.0)
            };
            // One kind of readiness at a time: the runtime ignores a call for both.
            let got = pair.socket.try_io(Interest::READABLE, &mut receive);
            match got.or_else(|_| pair.socket.try_io(Interest::ERROR, &mut receive)) {
                Ok(bytes) => {
                    pair.used = Instant::now();
                    let payload = &buffer[..bytes];
                    let bytes = u64::try_from(bytes).unwrap_or(0);
                    pair.bytes_in += bytes;
                    shared.totals.carried(0, bytes);
                    if let Some(frame) = frame(protocol, key, payload) {
                        shared.port.send(&frame);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if pair.arrival.as_mut().poll(&mut context).is_pending() {
                        return;
                    }
                    pair.arrival = arrival(&pair.socket);
                }
                Err(_) => {
                    if let Some(frame) = wire::unreachable(&pair.sent) {
                        shared.port.send(&frame);
                    }
                }
            }
        }
        waker.wake();
    }

    /// Wakes all, because the VMM reads again.
    pub(crate) fn wake_all(&self) {
        self.flows.values().for_each(|pair| pair.waker.wake_by_ref());
    }

    /// When idle ones are to be looked for.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.next_sweep
    }

    /// Forgets idle ones.
    pub(crate) fn expire(&mut self, shared: &mut Shared, now: Instant) {
        if self.next_sweep.is_none_or(|at| at > now) {
            return;
        }
        self.forget(shared, |_, pair| now.saturating_duration_since(pair.used) > DATAGRAM_IDLE);
        self.next_sweep = (!self.flows.is_empty()).then_some(now + SWEEP);
    }

    /// Ends what the policy no longer permits.
    pub(crate) fn enforce(&mut self, shared: &mut Shared) {
        let refused = |(protocol, key): &(Protocol, FlowKey)| {
            matches!(shared.verdict(*protocol, key.remote), Verdict::Refused(_))
        };
        let refused: Vec<_> = self.flows.keys().copied().filter(refused).collect();
        self.forget(shared, |key, _| refused.contains(key));
    }

    fn forget(
        &mut self,
        shared: &mut Shared,
        mut which: impl FnMut(&(Protocol, FlowKey), &Pair) -> bool,
    ) {
        for ((protocol, key), pair) in self.flows.extract_if(|key, pair| which(key, pair)) {
            let ms = u64::try_from(pair.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            let name = shared.name(key.remote);
            shared.journal.add(&Entry {
                outcome: FlowOutcome::Ended,
                protocol,
                remote: Some(key.remote),
                name: name.as_deref(),
                reason: &pair.rule.to_string(),
                traffic: Some(Traffic { bytes_out: pair.bytes_out, bytes_in: pair.bytes_in, ms }),
            });
        }
    }
}

fn arrival(socket: &Arc<UdpSocket>) -> Pin<Box<dyn Future<Output = io::Result<Ready>> + Send>> {
    let socket = socket.clone();
    // An error is nothing to read for the runtime.
    Box::pin(async move { socket.ready(Interest::READABLE | Interest::ERROR).await })
}

fn bind(protocol: Protocol, remote: IpAddr) -> io::Result<std::net::UdpSocket> {
    let any: SocketAddr = if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    if protocol == Protocol::Udp {
        return std::net::UdpSocket::bind(any);
    }
    let (family, number) = match remote {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC;
    // Open to those whose group is in `net.ipv4.ping_group_range`.
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(number))?;
    Ok(std::net::UdpSocket::from(socket))
}

/// What has come, as a frame; none for what the guest did not ask for.
fn frame(protocol: Protocol, key: FlowKey, payload: &[u8]) -> Option<Vec<u8>> {
    let (remote, ident) = (key.remote.ip(), key.guest_port);
    if protocol == Protocol::Udp {
        let headers = if remote.is_ipv4() { 28 } else { 48 };
        return (payload.len() + headers <= LINK_MTU)
            .then(|| wire::udp(key.remote, key.guest_port, payload));
    }
    let (header, data) = payload.split_at_checked(ICMP_HEADER_BYTES)?;
    let sequence = u16::from_be_bytes([header[6], header[7]]);
    Some(wire::echo_reply(Echo { remote, ident, sequence, data }))
}
