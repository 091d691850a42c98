//! A guest without a VM: a TCP stack of its own at the other end of a link.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forkd_types::SandboxId;
use forkd_types::network::{GATEWAY_IPV4, GATEWAY_IPV6, GUEST_IPV4, GUEST_IPV6, LINK_MTU};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustix::net::{RecvFlags, SendFlags};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{self, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, HardwareAddress, Icmpv4Packet, Icmpv4Repr, IpCidr, IpProtocol,
    IpRepr, Ipv4Packet, Ipv6Packet, UdpPacket, UdpRepr,
};

pub(crate) const HEADER: usize = 14;
const PATIENCE: Duration = Duration::from_secs(120);

/// Why a connection was not made, or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By a reset.
    Reset,
    /// The other side sends nothing more.
    Finished,
}

struct Inner {
    interface: Interface,
    sockets: SocketSet<'static>,
    device: LinkEnd,
    start: Instant,
    last_port: u16,
}

/// The guest's end of a link.
struct LinkEnd {
    socket: OwnedFd,
    frames: VecDeque<Vec<u8>>,
    /// IP packets that are no TCP.
    others: Vec<Vec<u8>>,
}

/// A guest; its stack is driven by a thread.
pub(crate) struct Guest {
    pub(crate) sandbox: SandboxId,
    inner: Arc<Mutex<Inner>>,
    ended: Arc<AtomicBool>,
    socket: OwnedFd,
}

/// A connection of a guest.
pub(crate) struct Stream {
    inner: Arc<Mutex<Inner>>,
    handle: SocketHandle,
}

impl Guest {
    pub(crate) fn new(sandbox: SandboxId, socket: OwnedFd) -> Self {
        let raw = socket.try_clone().unwrap();
        let mut device = LinkEnd { socket, frames: VecDeque::new(), others: Vec::new() };
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut device, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(GUEST_IPV4.into(), 30)).unwrap();
            addresses.push(IpCidr::new(GUEST_IPV6.into(), 64)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY_IPV4).unwrap();
        interface.routes_mut().add_default_ipv6_route(GATEWAY_IPV6).unwrap();
        let (sockets, start) = (SocketSet::new(Vec::new()), Instant::now());
        let inner = Inner { interface, sockets, device, start, last_port: 40_000 };
        let inner = Arc::new(Mutex::new(inner));
        Self::drive(sandbox, inner, raw)
    }

    fn drive(sandbox: SandboxId, inner: Arc<Mutex<Inner>>, socket: OwnedFd) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (driven, stop) = (inner.clone(), ended.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                driven.lock().unwrap().poll();
                thread::sleep(Duration::from_micros(200));
            }
        });
        Self { sandbox, inner, ended, socket }
    }

    /// Its processors stand still.
    pub(crate) fn stop(self) -> Stopped {
        self.ended.store(true, Ordering::Relaxed);
        Stopped(self.inner.clone())
    }

    /// Sends a frame past the stack.
    pub(crate) fn send_frame(&self, frame: &[u8]) {
        send(&self.socket, frame);
    }

    /// Connects; the error tells a refusal.
    pub(crate) fn connect(&self, to: &str) -> Result<Stream, Ended> {
        let stream = self.begin(to.parse().unwrap());
        let start = Instant::now();
        loop {
            match stream.state() {
                State::SynSent | State::SynReceived => {}
                State::Closed => return Err(Ended::Reset),
                _ => return Ok(stream),
            }
            assert!(start.elapsed() < PATIENCE, "neither answered nor refused: {to}");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sends a SYN.
    pub(crate) fn begin(&self, to: SocketAddr) -> Stream {
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        inner.last_port += 1;
        let buffer = || tcp::SocketBuffer::new(vec![0; 256 << 10]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let from: IpAddr = if to.is_ipv4() { GUEST_IPV4.into() } else { GUEST_IPV6.into() };
        let context = inner.interface.context();
        socket.connect(context, (to.ip(), to.port()), (from, inner.last_port)).unwrap();
        let handle = inner.sockets.add(socket);
        inner.poll();
        Stream { inner: self.inner.clone(), handle }
    }

    /// A socket that takes a connection.
    pub(crate) fn listen(&self, port: u16) -> Stream {
        let mut inner = self.inner.lock().unwrap();
        let buffer = || tcp::SocketBuffer::new(vec![0; 64 << 10]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.listen(port).unwrap();
        let handle = inner.sockets.add(socket);
        Stream { inner: self.inner.clone(), handle }
    }

    /// Sends a datagram; what comes back: its payload, or `None` for "port unreachable".
    pub(crate) fn exchange(&self, to: &str, port: u16, payload: &[u8]) -> Option<Vec<u8>> {
        self.send_frame(&datagram(to.parse().unwrap(), port, payload));
        let start = Instant::now();
        loop {
            if let Some(packet) = self.take_other() {
                return udp_payload(&packet, port);
            }
            assert!(start.elapsed() < PATIENCE, "no answer from {to}");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// A packet that has come and is no TCP.
    fn take_other(&self) -> Option<Vec<u8>> {
        self.inner.lock().unwrap().device.others.pop()
    }

    /// Takes a frame as if it had come over the link.
    pub(crate) fn receive_frame(&self, frame: &[u8]) {
        self.inner.lock().unwrap().device.frames.push_back(frame[HEADER..].to_vec());
    }

    /// Asks for an echo; its data, or none when there is no answer soon.
    pub(crate) fn ping(&self, to: &str, data: &[u8]) -> Option<Vec<u8>> {
        let to: std::net::Ipv4Addr = to.parse().unwrap();
        let echo = Icmpv4Repr::EchoRequest { ident: 77, seq_no: 1, data };
        let checksums = ChecksumCapabilities::default();
        let bytes = echo.buffer_len();
        let ip = IpRepr::new(GUEST_IPV4.into(), to.into(), IpProtocol::Icmp, bytes, 64);
        let mut packet = vec![0; ip.buffer_len()];
        ip.emit(&mut packet[..], &checksums);
        echo.emit(&mut Icmpv4Packet::new_unchecked(&mut packet[ip.header_len()..]), &checksums);
        self.send_frame(&with_ethernet(&packet));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            if let Some(packet) = self.take_other() {
                let packet = Ipv4Packet::new_checked(&packet[..]).unwrap();
                let echo = Icmpv4Packet::new_checked(packet.payload()).unwrap();
                match Icmpv4Repr::parse(&echo, &checksums).unwrap() {
                    Icmpv4Repr::EchoReply { ident: 77, seq_no: 1, data } => {
                        return Some(data.to_vec());
                    }
                    other => panic!("{other:?}"),
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Asks the resolver at `server`.
    pub(crate) fn resolve(
        &self,
        server: &str,
        name: &str,
        kind: RecordType,
    ) -> (ResponseCode, Vec<IpAddr>) {
        let mut query = Message::query();
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let reply = self.exchange(server, 5000, &query.to_vec().unwrap()).unwrap();
        let reply = Message::from_vec(&reply).unwrap();
        let address = |data: &RData| match data {
            RData::A(address) => Some(IpAddr::from(address.0)),
            RData::AAAA(address) => Some(IpAddr::from(address.0)),
            _ => None,
        };
        let addresses = reply.answers.iter().filter_map(|record| address(&record.data)).collect();
        (reply.metadata.response_code, addresses)
    }

    /// Asks for an IPv4 address at the gateway.
    pub(crate) fn look_up(&self, name: &str) -> Option<IpAddr> {
        self.resolve("10.42.0.1:53", name, RecordType::A).1.first().copied()
    }

    /// The same, past packets that have come for something else.
    pub(crate) fn look_up_beside(&self, name: &str) -> Option<IpAddr> {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        let to = SocketAddr::new(GATEWAY_IPV4.into(), 53);
        self.send_frame(&datagram(to, 5000, &query.to_vec().unwrap()));
        let start = Instant::now();
        loop {
            let reply = self.take_other().and_then(|packet| udp_payload(&packet, 5000));
            let reply = reply.and_then(|reply| Message::from_vec(&reply).ok());
            if let Some(reply) = reply.filter(|it| it.metadata.id == query.metadata.id) {
                return reply.answers.first().and_then(|record| record.data.ip_addr());
            }
            assert!(start.elapsed() < PATIENCE, "no answer for {name}");
            thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// A guest whose processors stand still.
pub(crate) struct Stopped(Arc<Mutex<Inner>>);

impl Stopped {
    /// Goes on with another link.
    pub(crate) fn resume(self, sandbox: SandboxId, socket: OwnedFd) -> Guest {
        let raw = socket.try_clone().unwrap();
        {
            let device = &mut self.0.lock().unwrap().device;
            device.socket = socket;
            device.frames.clear();
        }
        Guest::drive(sandbox, self.0, raw)
    }
}

impl Inner {
    fn poll(&mut self) {
        let now = self.start.elapsed().as_micros();
        let now = StackInstant::from_micros(i64::try_from(now).unwrap());
        self.device.read();
        self.interface.poll(now, &mut self.device, &mut self.sockets);
    }
}

impl Stream {
    fn with<T>(&self, work: impl FnOnce(&mut tcp::Socket<'static>) -> T) -> T {
        work(self.inner.lock().unwrap().sockets.get_mut(self.handle))
    }

    pub(crate) fn state(&self) -> State {
        self.with(|socket| socket.state())
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        let peer = self.with(|socket| socket.remote_endpoint()).unwrap();
        SocketAddr::new(peer.addr.into(), peer.port)
    }

    /// Writes all of it, or as much as goes before the connection ends.
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> Result<(), Ended> {
        let start = Instant::now();
        while !bytes.is_empty() {
            let written = self.write(bytes)?;
            bytes = &bytes[written..];
            assert!(start.elapsed() < PATIENCE, "nobody reads");
            if written == 0 {
                thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Writes what there is room for.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Ended> {
        let written = self.with(|socket| socket.send_slice(bytes).map_err(|_| Ended::Reset))?;
        self.inner.lock().unwrap().poll();
        Ok(written)
    }

    /// Reads what there is, or waits for it.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Ended> {
        let start = Instant::now();
        loop {
            let mut buffer = vec![0; 65_536];
            let read = self.with(|socket| match socket.recv_slice(&mut buffer) {
                Ok(bytes) => Ok(bytes),
                Err(tcp::RecvError::Finished) => Err(Ended::Finished),
                Err(tcp::RecvError::InvalidState) => Err(Ended::Reset),
            })?;
            if read > 0 {
                buffer.truncate(read);
                return Ok(buffer);
            }
            assert!(start.elapsed() < PATIENCE, "nothing comes");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Reads up to the end.
    pub(crate) fn read_all(&self) -> Result<Vec<u8>, Ended> {
        let mut all = Vec::new();
        loop {
            match self.read() {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(Ended::Finished) => return Ok(all),
                Err(ended) => return Err(ended),
            }
        }
    }

    /// Bytes that have come and are not read.
    pub(crate) fn unread(&self) -> usize {
        self.with(|socket| socket.recv_queue())
    }

    /// Resets the connection.
    pub(crate) fn abort(&self) {
        self.with(tcp::Socket::abort);
    }

    /// The same connection as a socket of this process.
    pub(crate) fn into_socket(self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut from, mut to) = (theirs.try_clone().unwrap(), theirs);
        let reads = Arc::new(self);
        let writes = reads.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                let mut rest = &buffer[..bytes];
                while !rest.is_empty() {
                    let Ok(written) = writes.write(rest) else { return };
                    rest = &rest[written..];
                    thread::sleep(Duration::from_micros(if written == 0 { 200 } else { 0 }));
                }
            }
            writes.finish();
        });
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            loop {
                let read = reads.with(|socket| socket.recv_slice(&mut buffer));
                let ended = match read {
                    Ok(0) => {
                        thread::sleep(Duration::from_micros(200));
                        false
                    }
                    Ok(bytes) => to.write_all(&buffer[..bytes]).is_err(),
                    Err(tcp::RecvError::Finished) => to.shutdown(Shutdown::Write).is_ok(),
                    Err(tcp::RecvError::InvalidState) => to.shutdown(Shutdown::Both).is_ok(),
                };
                if ended {
                    return;
                }
            }
        });
        ours
    }

    /// Says that nothing more is written.
    pub(crate) fn finish(&self) {
        self.with(tcp::Socket::close);
    }
}

impl LinkEnd {
    fn read(&mut self) {
        let mut buffer = vec![0; 70_000];
        while let Ok((bytes, _)) =
            rustix::net::recv(self.socket.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT)
        {
            let packet = &buffer[HEADER..bytes];
            let protocol = match packet[0] >> 4 {
                4 => Ipv4Packet::new_checked(packet).unwrap().next_header(),
                _ => Ipv6Packet::new_checked(packet).unwrap().next_header(),
            };
            match protocol {
                IpProtocol::Tcp => self.frames.push_back(packet.to_vec()),
                _ => self.others.push(packet.to_vec()),
            }
        }
    }
}

fn send(socket: &OwnedFd, frame: &[u8]) {
    let start = Instant::now();
    while rustix::net::send(socket, frame, SendFlags::DONTWAIT).is_err() {
        assert!(start.elapsed() < PATIENCE, "the gateway does not read");
        thread::sleep(Duration::from_micros(100));
    }
}

/// An IP packet as a frame.
pub(crate) fn with_ethernet(packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame.extend_from_slice(packet);
    let is_v4 = packet[0] >> 4 == 4;
    let kind = if is_v4 { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    EthernetFrame::new_unchecked(&mut frame).set_ethertype(kind);
    frame
}

/// A datagram of the guest as a frame.
pub(crate) fn datagram(to: SocketAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let from: IpAddr = if to.is_ipv4() { GUEST_IPV4.into() } else { GUEST_IPV6.into() };
    let checksums = ChecksumCapabilities::default();
    let header = UdpRepr { src_port: port, dst_port: to.port() };
    let ip = IpRepr::new(from.into(), to.ip().into(), IpProtocol::Udp, 8 + payload.len(), 64);
    let mut packet = vec![0; ip.buffer_len()];
    ip.emit(&mut packet[..], &checksums);
    header.emit(
        &mut UdpPacket::new_unchecked(&mut packet[ip.header_len()..]),
        &from.into(),
        &to.ip().into(),
        payload.len(),
        |bytes| bytes.copy_from_slice(payload),
        &checksums,
    );
    with_ethernet(&packet)
}

fn udp_payload(packet: &[u8], port: u16) -> Option<Vec<u8>> {
    let inside = match packet[0] >> 4 {
        4 => {
            let packet = Ipv4Packet::new_checked(packet).unwrap();
            assert!(packet.verify_checksum());
            (packet.next_header() == IpProtocol::Udp).then(|| packet.payload().to_vec())?
        }
        _ => {
            let packet = Ipv6Packet::new_checked(packet).unwrap();
            (packet.next_header() == IpProtocol::Udp).then(|| packet.payload().to_vec())?
        }
    };
    let datagram = UdpPacket::new_checked(&inside[..]).unwrap();
    (datagram.dst_port() == port).then(|| datagram.payload().to_vec())
}

impl Device for LinkEnd {
    type RxToken<'a> = Frame;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Frame, Sending<'_>)> {
        self.frames.pop_front().map(|frame| (Frame(frame), Sending(&self.socket)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        Some(Sending(&self.socket))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = LINK_MTU;
        capabilities
    }
}

/// A frame to the guest.
pub(crate) struct Frame(Vec<u8>);

impl RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// A frame of the guest.
pub(crate) struct Sending<'a>(&'a OwnedFd);

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, f: F) -> R {
        let mut packet = vec![0; bytes];
        let result = f(&mut packet);
        send(self.0, &with_ethernet(&packet));
        result
    }
}
