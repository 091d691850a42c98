//! A host and an internet, each a thread in a network namespace of its own, joined by a pair of
//! devices. Nothing leaves. Every address but the host's is in the internet.
//!
//! Needs root, or `unshare -Ur` around the tests.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forkd_netd::{Filtered, NetdOptions};
use forkd_netd_protocol::{Attach, Client, Flow, Presence};
use forkd_types::network::{NetworkLeave, NetworkPolicy, Rule, Transform};
use forkd_types::{Owner, SandboxId};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::PidfdFlags;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Runtime;

use crate::guest::Guest;

/// The host's address towards the internet.
pub(crate) const HOST: &str = "192.0.2.1";
const RESOLVER: &str = "203.0.113.53";

type Zone = Arc<Mutex<HashMap<String, Vec<IpAddr>>>>;

/// What the internet has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// Connections: where to, and their first bytes.
    pub(crate) connections: Mutex<Vec<(SocketAddr, Vec<u8>)>>,
    pub(crate) datagrams: Mutex<Vec<SocketAddr>>,
    pub(crate) queries: Mutex<Vec<String>>,
}

/// A gateway between guests and an internet.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) seen: Arc<Seen>,
    pub(crate) logs: PathBuf,
    runtime: Runtime,
    internet: tokio::runtime::Handle,
    host: tokio::runtime::Handle,
    gateway_thread: i32,
    zone: Zone,
    /// A gateway without a daemon ends.
    present: Option<Presence>,
    _folder: tempfile::TempDir,
}

/// A thread in a network of its own, with a runtime on which everything runs in that network.
fn namespace(name: &str) -> (tokio::runtime::Handle, i32) {
    let (tell, told) = channel();
    let thread = thread::Builder::new().name(name.to_owned());
    thread
        .spawn(move || {
            forkd_sys::confine::unshare_network()
                .expect("these tests need root, or `unshare -Ur` around them");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send((runtime.handle().clone(), id)).unwrap();
            runtime.block_on(std::future::pending::<()>());
        })
        .unwrap();
    told.recv().unwrap()
}

fn ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

impl World {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (host, _) = namespace("host");
        let (internet, thread) = namespace("internet");
        let folder = tempfile::tempdir().unwrap();
        let resolv_conf = folder.path().join("resolv.conf");
        std::fs::write(&resolv_conf, format!("# ours\nnameserver {RESOLVER}\n")).unwrap();
        let socket = folder.path().join("netd");
        let options = NetdOptions {
            socket: forkd_netd_protocol::bind(&socket).unwrap(),
            log_dir: folder.path().to_owned(),
            resolv_conf,
            filtered: Filtered::Thread,
        };
        let client = Client::new(socket.clone());
        let (logs, zone, seen) =
            (folder.path().to_owned(), Zone::default(), Arc::new(Seen::default()));
        let mut world = Self {
            client,
            seen,
            logs,
            runtime,
            internet,
            host,
            gateway_thread: 0,
            zone,
            present: None,
            _folder: folder,
        };
        world.join(thread);
        world.gateway_thread = world.on_host(async { run_gateway(options) });
        world.serve_names();
        let start = Instant::now();
        while world.present.is_none() {
            let _inside = world.runtime.enter();
            world.present = Presence::at(&socket).ok();
            assert!(start.elapsed() < Duration::from_secs(120), "the gateway does not listen");
            thread::sleep(Duration::from_millis(2));
        }
        world
    }

    fn join(&self, internet_thread: i32) {
        self.on_host(async move {
            ip("link set lo up");
            ip("link add out type veth peer name in");
            ip(&format!("link set in netns {internet_thread}"));
            ip(&format!("addr add {HOST}/24 dev out"));
            ip("addr add 2001:db8:ffff::1/64 dev out nodad");
            ip("link set out up");
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
        });
        self.on_internet(async {
            ip("link set lo up");
            ip("addr add 192.0.2.2/24 dev in");
            ip("addr add 2001:db8:ffff::2/64 dev in nodad");
            ip("link set in up");
            ip("route add local default dev lo table local");
            // All but the way back: the table of own addresses is read first.
            for range in ["2001:db8::/33", "64:ff9b::/96", "2002::/16"] {
                ip(&format!("-6 route add local {range} dev lo"));
            }
            ip("addr add 2001:db8::7/128 dev lo nodad");
        });
        self.on_host(async {
            ip("route add default via 192.0.2.2");
            ip("-6 route add default via 2001:db8:ffff::2");
        });
    }

    /// Runs on the internet's thread, and waits for it.
    pub(crate) fn on_internet<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.runtime.block_on(self.internet.spawn(work)).unwrap()
    }

    pub(crate) fn on_host<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.runtime.block_on(self.host.spawn(work)).unwrap()
    }

    /// Waits for something that happens soon.
    pub(crate) fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(120), "waited for: {what}");
            // What a test has spawned goes on.
            self.ask(async { tokio::time::sleep(Duration::from_millis(2)).await });
        }
    }

    /// Asks the gateway.
    pub(crate) fn ask<T>(&self, question: impl Future<Output = T>) -> T {
        self.runtime.block_on(question)
    }

    /// A server at a port of every address: `serve` gets each connection.
    pub(crate) fn serve<F>(&self, port: u16, serve: impl Fn(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.on_internet(async move {
            let listener = TcpListener::bind(("::", port)).await.unwrap();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream));
                }
            });
        });
    }

    /// A server that notes what it gets, and answers with it.
    pub(crate) fn serve_echo(&self, port: u16) {
        let seen = self.seen.clone();
        self.serve(port, move |mut stream| {
            let seen = seen.clone();
            async move {
                let mut to = stream.local_addr().unwrap();
                to.set_ip(to.ip().to_canonical());
                let index = {
                    let mut connections = seen.connections.lock().unwrap();
                    connections.push((to, Vec::new()));
                    connections.len() - 1
                };
                let mut buffer = vec![0; 65_536];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                    let got = &buffer[..bytes];
                    seen.connections.lock().unwrap()[index].1.extend_from_slice(got);
                    if stream.write_all(got).await.is_err() {
                        return;
                    }
                }
            }
        });
    }

    /// Answers datagrams with themselves, at a port of one address.
    pub(crate) fn serve_datagrams(&self, at: &str) {
        let (seen, at): (_, SocketAddr) = (self.seen.clone(), at.parse().unwrap());
        self.on_internet(async move {
            let socket = UdpSocket::bind(at).await.unwrap();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
                    seen.datagrams.lock().unwrap().push(at);
                    socket.send_to(&buffer[..bytes], from).await.ok();
                }
            });
        });
    }

    /// Gives a name addresses.
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.zone.lock().unwrap().insert(name.to_owned(), addresses);
    }

    fn serve_names(&self) {
        let (zone, seen) = (self.zone.clone(), self.seen.clone());
        self.on_internet(async move {
            let socket = UdpSocket::bind((RESOLVER, 53)).await.unwrap();
            tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
                    let query = Message::from_vec(&buffer[..bytes]).unwrap();
                    let name = query.queries[0].name().to_ascii().to_lowercase();
                    seen.queries.lock().unwrap().push(name.trim_end_matches('.').to_owned());
                    let known = zone.lock().unwrap().get(name.trim_end_matches('.')).cloned();
                    let reply = answer(query, known);
                    socket.send_to(&reply.to_vec().unwrap(), from).await.ok();
                }
            });
        });
    }

    /// A sandbox with a policy, and its guest.
    pub(crate) fn guest(&self, policy: &str) -> Guest {
        self.guest_with(policy, NetworkLeave::Public, Vec::new(), None)
    }

    pub(crate) fn guest_with(
        &self,
        policy: &str,
        leave: NetworkLeave,
        inherited: Vec<Flow>,
        parent: Option<SandboxId>,
    ) -> Guest {
        let (gateway, guest) = link();
        let sandbox = SandboxId::random();
        self.attach(&sandbox, policy, leave, inherited, parent, &gateway);
        Guest::new(sandbox, guest)
    }

    /// Attaches a link whose other end is the caller's.
    pub(crate) fn attach(
        &self,
        sandbox: &SandboxId,
        policy: &str,
        leave: NetworkLeave,
        inherited: Vec<Flow>,
        parent: Option<SandboxId>,
        gateway: &OwnedFd,
    ) {
        let attach = Attach { leave, inherited, parent, ..beginning(sandbox, policy) };
        self.attach_as(attach, gateway);
    }

    pub(crate) fn attach_as(&self, attach: Attach, gateway: &OwnedFd) {
        std::fs::create_dir_all(self.logs.join(attach.sandbox.as_str())).unwrap();
        self.ask(self.client.attach(attach, gateway.as_fd(), lasting().as_fd())).unwrap();
    }

    /// Packets that the internet has got: of IPv4 all, of IPv6 those that are no chatter between
    /// neighbours.
    pub(crate) fn packets_seen(&self) -> [u64; 4] {
        self.on_internet(async {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap()
            };
            let (snmp, snmp6) = (read("snmp"), read("snmp6"));
            let ip: Vec<&str> = snmp.lines().filter(|line| line.starts_with("Ip: ")).collect();
            let names = ip[0].split_whitespace().position(|name| name == "InReceives");
            let received = ip[1].split_whitespace().nth(names.unwrap()).unwrap();
            let of = |name: &str| {
                let line = snmp6.lines().find(|line| line.split_whitespace().next() == Some(name));
                line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
            };
            let udp6 = of("Udp6InDatagrams") + of("Udp6NoPorts");
            [received.parse().unwrap(), udp6, of("Icmp6InEchos"), of("Ip6InUnknownProtos")]
        })
    }

    /// Seconds of a processor that the gateway's thread has used.
    pub(crate) fn gateway_cpu(&self) -> f64 {
        let path = format!("/proc/self/task/{}/schedstat", self.gateway_thread);
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1e-9
    }

    /// The lines of a sandbox's log.
    pub(crate) fn log(&self, sandbox: &SandboxId) -> Vec<serde_json::Value> {
        let path = self.logs.join(sandbox.as_str()).join("network.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs the gateway on a thread of its own, in the network of the calling one: it is confined, and
/// the host must not be.
fn run_gateway(options: NetdOptions) -> i32 {
    let (tell, told) = channel();
    thread::Builder::new()
        .name("gateway".to_owned())
        .spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(forkd_netd::run(options)).unwrap();
        })
        .unwrap();
    told.recv().unwrap()
}

/// What a link begins with, unless more is said.
pub(crate) fn beginning(sandbox: &SandboxId, policy: &str) -> Attach {
    Attach {
        sandbox: sandbox.clone(),
        name: None,
        owner: Owner::default(),
        policy: parse(policy),
        leave: NetworkLeave::Public,
        networks: BTreeMap::new(),
        inherited: Vec::new(),
        parent: None,
    }
}

/// A VMM that ends with the test.
pub(crate) fn lasting() -> OwnedFd {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap()
}

/// Both ends of a link: the gateway's and the VMM's.
pub(crate) fn link() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 1 << 20).unwrap();
    (ours, theirs)
}

/// `+` allows, `-` denies, `@host|header|value` is a rule, with `_` for spaces in the value.
pub(crate) fn parse(text: &str) -> NetworkPolicy {
    let mut policy = NetworkPolicy::default();
    for word in text.split_whitespace() {
        match word {
            "-all" => policy.allow_internet_access = Some(false),
            word if word.starts_with('+') => policy.allow_out.push(word[1..].parse().unwrap()),
            word if word.starts_with('@') => {
                let mut parts = word[1..].splitn(3, '|');
                let mut part = || parts.next().unwrap();
                let (host, name) = (part().parse().unwrap(), part().parse().unwrap());
                let value = part().replace('_', " ").parse().unwrap();
                let rule = Rule { transform: Transform { headers: [(name, value)].into() } };
                policy.rules.0.entry(host).or_default().push(rule);
            }
            word => policy.deny_out.push(word[1..].parse().unwrap()),
        }
    }
    policy
}

fn answer(query: Message, known: Option<Vec<IpAddr>>) -> Message {
    let asked = query.queries[0].clone();
    let mut reply = query.into_response();
    let Some(addresses) = known else {
        reply.metadata.response_code = ResponseCode::NXDomain;
        return reply;
    };
    for address in addresses {
        let data = match (address, asked.query_type()) {
            (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
            (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
            _ => continue,
        };
        reply.add_answer(Record::from_rdata(asked.name().clone(), 60, data));
    }
    reply
}
