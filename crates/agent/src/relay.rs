//! A way to servers that listen on the guest's loopback address only.
//!
//! ```text
//! gateway -- link --> a port of our own, for one connection --> 127.0.0.1 or ::1
//! ```
//!
//! Nothing listens before the host asks, and then for one connection, which must come from the
//! gateway, and for a few seconds. The server sees a peer on its own loopback address, as it would
//! a program in the guest.
//!
//! Guarantees: an end goes on as an end, in each direction by itself; a reset goes on as a reset; a
//! side that does not read holds up the other, and nothing but 128 KiB is held for both.
//!
//! What it does not do: keep programs of the guest from reaching these servers. They can anyway.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forkd_protocol::{Reply, code};
use forkd_types::network::{GATEWAY_IPV4, GUEST_IPV4, GUEST_IPV6};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;

use crate::active::{Active, Refusal};
use crate::threads;

/// Where a server may be that the gateway does not reach by the guest's IPv4 address.
const SERVERS: [IpAddr; 3] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(GUEST_IPV6)];

/// For a server whose queue is full to take the connection.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// For the gateway to come.
const ACCEPT_DEADLINE: Duration = Duration::from_secs(5);

const BUFFER_BYTES: usize = 64 * 1024;
const STACK_BYTES: usize = 64 * 1024;

/// Connections that are passed on at once.
const RELAYS_MAX: usize = 256;

static RELAYS: AtomicUsize = AtomicUsize::new(0);

/// Connects to a server and listens for the gateway, then says where.
pub(crate) fn open(active: &Active, port: u16) {
    let opened = Place::take().and_then(|place| {
        let server = connect(&SERVERS, port)?;
        let listener = TcpListener::bind((GUEST_IPV4, 0)).map_err(failed)?;
        let own = listener.local_addr().map_err(failed)?.port();
        let relay = move || {
            let _place = place;
            // Both ends see what has become of it.
            run(&listener, GATEWAY_IPV4.into(), server).ok();
        };
        threads::start("relay", STACK_BYTES, relay)
            .map_err(|error| Refusal::new(code::BUSY, error.to_string()))?;
        Ok(own)
    });
    let reply = match opened {
        Ok(port) => Reply::PortOpened { port },
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&reply, || {});
}

/// A place among those that are passed on at once.
struct Place;

impl Place {
    fn take() -> Result<Self, Refusal> {
        // Dropped, it gives back what has been counted too much.
        let place = Self;
        match RELAYS.fetch_add(1, Ordering::Relaxed) < RELAYS_MAX {
            true => Ok(place),
            false => Err(Refusal::new(code::BUSY, format!("{RELAYS_MAX} connections are open"))),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        RELAYS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn failed(error: io::Error) -> Refusal {
    Refusal::new(code::PORT_FAILED, error.to_string())
}

fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, Refusal> {
    for address in addresses {
        let to = SocketAddr::new(*address, port);
        match TcpStream::connect_timeout(&to, CONNECT_DEADLINE) {
            Ok(server) => return Ok(server),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(failed(error)),
            // Refused, or the kernel has no IPv6.
            Err(_) => {}
        }
    }
    Err(Refusal::new(code::PORT_CLOSED, format!("nothing listens on port {port}")))
}

/// Passes one connection from `peer` on to a server, until both directions have ended.
fn run(listener: &TcpListener, peer: IpAddr, server: TcpStream) -> io::Result<()> {
    let client = accept(listener, peer)?;
    let streams = [client, server];
    for stream in &streams {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    let passed = pass(&streams);
    if passed.is_err() {
        // Nobody shall take what has come for the whole.
        for stream in &streams {
            set_socket_linger(stream, Some(Duration::ZERO)).ok();
        }
    }
    passed
}

/// Waits for `peer`. Others are turned away.
fn accept(listener: &TcpListener, peer: IpAddr) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let until = Instant::now() + ACCEPT_DEADLINE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut fds, Some(&left))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match listener.accept() {
            Ok((stream, from)) if from.ip() == peer => return Ok(stream),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Passes bytes on in both directions, until both have ended or one has failed.
fn pass(streams: &[TcpStream; 2]) -> io::Result<()> {
    let [client, server] = streams;
    let (mut up, mut down) = (Direction::new(), Direction::new());
    loop {
        up.step(client, server)?;
        down.step(server, client)?;
        if up.has_ended() && down.has_ended() {
            return Ok(());
        }
        let wanted = [
            up.wants_to_read() | down.wants_to_write(),
            down.wants_to_read() | up.wants_to_write(),
        ];
        let mut fds = [PollFd::new(client, wanted[0]), PollFd::new(server, wanted[1])];
        match poll(&mut fds, None::<&Timespec>) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
    }
}

/// One of the two directions of a connection.
struct Direction {
    buffer: Vec<u8>,
    /// What has been read and not been written.
    held: std::ops::Range<usize>,
    read: End,
}

/// How far the reading side has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// More may come.
    Open,
    /// Nothing more comes.
    Reached,
    /// The other side has been told.
    Told,
}

impl Direction {
    fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], held: 0..0, read: End::Open }
    }

    fn has_ended(&self) -> bool {
        self.read == End::Told
    }

    fn wants_to_read(&self) -> PollFlags {
        let wants = self.held.is_empty() && self.read == End::Open;
        if wants { PollFlags::IN } else { PollFlags::empty() }
    }

    fn wants_to_write(&self) -> PollFlags {
        if self.held.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    /// Passes on what there is and can be taken now, at most a buffer of it: the other direction
    /// has its turn then.
    fn step(&mut self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        if self.held.is_empty() && self.read == End::Open {
            let Some(count) = now(from.read(&mut self.buffer))? else { return Ok(()) };
            self.held = 0..count;
            if count == 0 {
                self.read = End::Reached;
            }
        }
        if !self.held.is_empty() {
            let bytes = &self.buffer[self.held.clone()];
            self.held.start += now(to.write(bytes))?.unwrap_or(0);
        }
        if self.held.is_empty() && self.read == End::Reached {
            to.shutdown(Shutdown::Write)?;
            self.read = End::Told;
        }
        Ok(())
    }
}

/// What was done, or none if it would have to wait.
fn now(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
    /// Longest wait for a byte; never reached when all is well.
    const SOON: Option<Duration> = Some(Duration::from_secs(60));

    /// A relay between two connections of the test: what the gateway has, and what the server has.
    struct Lab {
        gateway: TcpStream,
        server: TcpStream,
        relay: JoinHandle<io::Result<()>>,
    }

    fn lab() -> Lab {
        let servers = TcpListener::bind((HOST, 0)).unwrap();
        let own = TcpStream::connect(servers.local_addr().unwrap()).unwrap();
        let (server, _) = servers.accept().unwrap();
        let listener = TcpListener::bind((HOST, 0)).unwrap();
        let door = listener.local_addr().unwrap();
        let relay = std::thread::spawn(move || run(&listener, HOST.into(), own));
        let gateway = TcpStream::connect(door).unwrap();
        gateway.set_read_timeout(SOON).unwrap();
        server.set_read_timeout(SOON).unwrap();
        Lab { gateway, server, relay }
    }

    fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed).to_le_bytes()[0]).collect()
    }

    #[test]
    fn bytes_pass_in_both_directions_at_once_and_each_ends_by_itself() {
        const BYTES: usize = 4 << 20;
        let Lab { mut gateway, mut server, relay } = lab();
        let mut sender = server.try_clone().unwrap();
        let down = std::thread::spawn(move || {
            sender.write_all(&pattern(1, BYTES)).unwrap();
        });
        let mut sender = gateway.try_clone().unwrap();
        let up = std::thread::spawn(move || {
            sender.write_all(&pattern(2, BYTES)).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = vec![0; BYTES];
        gateway.read_exact(&mut got).unwrap();
        assert!(got == pattern(1, BYTES));
        got.clear();
        server.read_to_end(&mut got).unwrap();
        assert!(got == pattern(2, BYTES));
        // The other direction is open still.
        server.write_all(b"the last word").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        got.clear();
        gateway.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"the last word");
        up.join().unwrap();
        down.join().unwrap();
        relay.join().unwrap().unwrap();
    }

    #[test]
    fn a_side_that_does_not_read_holds_up_the_other_and_not_its_own_words() {
        let Lab { mut gateway, mut server, relay } = lab();
        let mut word = [0; 5];
        server.write_all(b"first").unwrap();
        gateway.read_exact(&mut word).unwrap();
        server.set_nonblocking(true).unwrap();
        let mut taken = 0;
        loop {
            let mut fds = [PollFd::new(&server, PollFlags::OUT)];
            // What fits between the two ends has been taken when nothing moves any more.
            let quiet = Timespec { tv_sec: 1, tv_nsec: 0 };
            if poll(&mut fds, Some(&quiet)).unwrap() == 0 {
                break;
            }
            taken += now(server.write(&pattern(0, 1 << 20))).unwrap().unwrap_or(0);
            assert!(taken < 256 << 20, "somebody holds all of it");
        }
        gateway.write_all(b"go on").unwrap();
        server.set_nonblocking(false).unwrap();
        server.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"go on");
        server.shutdown(Shutdown::Both).unwrap();
        gateway.shutdown(Shutdown::Write).unwrap();
        assert_eq!(io::copy(&mut gateway, &mut io::sink()).unwrap(), taken as u64);
        relay.join().unwrap().unwrap();
    }

    #[test]
    fn a_reset_goes_on_as_a_reset_in_either_direction() {
        for gateway_resets in [true, false] {
            let Lab { gateway, server, relay } = lab();
            let (resets, mut sees) =
                if gateway_resets { (gateway, server) } else { (server, gateway) };
            set_socket_linger(&resets, Some(Duration::ZERO)).unwrap();
            drop(resets);
            let error = sees.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{gateway_resets}");
            assert!(relay.join().unwrap().is_err());
        }
    }

    #[test]
    fn others_than_the_gateway_are_turned_away() {
        let listener = TcpListener::bind((HOST, 0)).unwrap();
        let door = listener.local_addr().unwrap();
        let gateway = Ipv4Addr::new(127, 0, 0, 2);
        let accepted = std::thread::spawn(move || accept(&listener, gateway.into()));
        let mut other = TcpStream::connect(door).unwrap();
        other.set_read_timeout(SOON).unwrap();
        // Closed or reset; not silent.
        let turned_away = other.read(&mut [0; 8]).map_err(|error| error.kind());
        assert!(matches!(turned_away, Ok(0) | Err(io::ErrorKind::ConnectionReset)));
        let from = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        let from = from.unwrap();
        rustix::net::bind(&from, &SocketAddr::from((gateway, 0))).unwrap();
        rustix::net::connect(&from, &door).unwrap();
        let accepted = accepted.join().unwrap().unwrap();
        assert_eq!(accepted.peer_addr().unwrap().ip(), IpAddr::from(gateway));
    }

    #[test]
    fn a_server_on_either_loopback_address_is_found_and_none_is_told() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(server) = TcpListener::bind(address) else {
                assert!(!std::path::Path::new("/proc/net/tcp6").exists(), "{address}");
                continue;
            };
            let own = server.local_addr().unwrap();
            let loopback = &SERVERS[..2];
            assert_eq!(connect(loopback, own.port()).unwrap().peer_addr().unwrap(), own);
            drop(server);
            assert_eq!(connect(loopback, own.port()).unwrap_err().code, code::PORT_CLOSED);
        }
    }
}
