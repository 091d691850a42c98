//! A network that a test has made: nothing leaves it. The daemon is in one network namespace, and
//! what it takes for the internet is in another.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::forkd::{Forkd, template_arguments};
use crate::processes::wait_until;

/// The daemon's own address.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Both namespaces, for as long as this lives.
pub(crate) struct Internet {
    inside: Namespace,
    outside: Namespace,
    accepted: Arc<Mutex<BTreeMap<SocketAddrV4, usize>>>,
}

/// A network namespace: that of a process that does nothing.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
        let child = command.spawn().expect("unshare; run `make setup`");
        let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let own = of(std::process::id());
        wait_until("a namespace is there", || of(child.id()).is_some_and(|it| Some(it) != own));
        Self(child)
    }

    /// A program in it.
    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.id().to_string()]);
        command
    }

    /// Does something in it.
    fn within<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        let there = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            act()
        };
        // The namespace is this thread's alone.
        thread::spawn(there).join().unwrap()
    }

    fn ip(&self, words: &str) {
        let status = self.command().arg("ip").args(words.split(' ')).status().unwrap();
        assert!(status.success(), "ip {words}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Internet {
    /// One with these addresses.
    pub(crate) fn with(addresses: &[Ipv4Addr]) -> Self {
        let (inside, outside) = (Namespace::new(), Namespace::new());
        inside.ip(&format!("link add host0 type veth peer name router0 netns {}", outside.0.id()));
        inside.ip(&format!("address add {HOST}/24 dev host0"));
        outside.ip(&format!("address add {ROUTER}/24 dev router0"));
        for address in addresses {
            outside.ip(&format!("address add {address}/32 dev lo"));
        }
        for (namespace, device) in [(&inside, "lo"), (&inside, "host0")] {
            namespace.ip(&format!("link set {device} up"));
        }
        for device in ["lo", "router0"] {
            outside.ip(&format!("link set {device} up"));
        }
        inside.ip(&format!("route add default via {ROUTER}"));
        Self { inside, outside, accepted: Arc::default() }
    }

    /// A server that sends back what it gets. Connections are counted.
    pub(crate) fn serve(&self, address: Ipv4Addr, port: u16) {
        self.serve_with(address, port, echo);
    }

    /// A server that does this with each connection. Connections are counted.
    pub(crate) fn serve_with(
        &self,
        address: Ipv4Addr,
        port: u16,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) {
        let at = SocketAddrV4::new(address, port);
        let listener = self.outside.within(move || TcpListener::bind(at).unwrap());
        let accepted = Arc::clone(&self.accepted);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let mut counts = accepted.lock().unwrap_or_else(PoisonError::into_inner);
                *counts.entry(at).or_default() += 1;
                let serve = serve.clone();
                thread::spawn(move || serve(connection));
            }
        });
    }

    /// How many connections the server there has had.
    pub(crate) fn accepted(&self, address: Ipv4Addr, port: u16) -> usize {
        let counts = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&SocketAddrV4::new(address, port)).copied().unwrap_or_default()
    }

    /// A command whose words name a program that is to run in the daemon's network.
    pub(crate) fn command(&self) -> Command {
        self.inside.command()
    }

    /// Does something in the daemon's network, such as opening a socket.
    pub(crate) fn inside<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.inside.within(act)
    }

    /// Runs a command that may start a daemon: it is in this network then.
    pub(crate) fn run(&self, forkd: &Forkd, args: &[&str]) {
        let mut command = forkd.within(self.inside.command());
        let output = command.arg("forkd").args(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "forkd {args:?}: {errors}");
    }

    /// As [`Forkd::template`], for a daemon that may be started by it.
    pub(crate) fn template(&self, forkd: &Forkd, image: &str, tag: &str, mebibytes: u64) {
        let arguments = template_arguments(image, tag, mebibytes);
        self.run(forkd, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn echo(mut connection: TcpStream) {
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = connection.read(&mut bytes) {
        if connection.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
