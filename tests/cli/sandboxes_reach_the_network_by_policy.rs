//! A sandbox reaches what its policy allows, at once or not at all; so does what is started from
//! its snapshots. Its connections outlive a branch, a child's copies of them do not. The gateway
//! may die and the daemon may die.
//!
//! Method: the command line, with a daemon in a network that the test has made. Python in the guest
//! holds connections to servers that count theirs.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::forkd::Forkd;
use crate::internet::{HOST, Internet};
use crate::processes::{kill_and_wait, kill_daemon, wait_until};

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const ALLOWED: u16 = 7000;
const FORBIDDEN: u16 = 7001;

/// What the guest's Python has at hand.
const TOOLS: &str = r#"
import socket
def reach(address, port):
    try:
        return socket.create_connection((address, port), timeout=60)
    except OSError as error:
        return type(error).__name__
def speak(connection, word):
    try:
        connection.sendall(word)
        return connection.recv(100)
    except OSError as error:
        return type(error).__name__
def verdict(address, port):
    connection = reach(address, port)
    return connection if isinstance(connection, str) else speak(connection, b"yes").decode()
"#;

struct Guest<'a> {
    forkd: &'a Forkd,
    id: String,
}

impl Guest<'_> {
    fn eval(&self, code: &str) -> String {
        self.forkd.ok(&["eval", &self.id, code])
    }

    fn verdict(&self, address: Ipv4Addr, port: u16) -> String {
        self.eval(&format!("verdict('{address}', {port})"))
    }

    /// What it says over the connection that it holds.
    fn speak(&self) -> String {
        self.eval("speak(held, b'still here')")
    }

    fn hold(&self) {
        self.eval(&format!("held = reach('{SERVER}', {ALLOWED})"));
        assert_eq!(self.speak(), "b'still here'");
    }

    fn assert_list(&self, internet: &Internet) {
        let before = internet.accepted(SERVER, FORBIDDEN);
        assert_eq!(self.verdict(SERVER, ALLOWED), "'yes'");
        assert_eq!(self.verdict(SERVER, FORBIDDEN), "'ConnectionRefusedError'");
        assert_eq!(self.verdict(OTHER, ALLOWED), "'ConnectionRefusedError'");
        assert_eq!(internet.accepted(SERVER, FORBIDDEN), before, "it got there");
    }
}

fn guest<'a>(forkd: &'a Forkd, sandbox: &Value) -> Guest<'a> {
    let id = sandbox["id"].as_str().unwrap_or_else(|| panic!("no id: {sandbox}"));
    Guest { forkd, id: id.to_owned() }
}

/// The gateway's process: the one that listens.
pub(crate) fn gateway(forkd: &Forkd) -> Option<u64> {
    let pid = forkd_testkit::gateway_in(&forkd.home().join("run"))?;
    u64::try_from(pid.as_raw_nonzero().get()).ok()
}

/// What went through the gateways can be read, over the death of one of them.
fn assert_told(guest: &Guest<'_>) {
    let Guest { forkd, id } = guest;
    let log = forkd.ok(&["network", "log", id, "--json"]);
    let log: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = log.iter().map(|entry| entry["number"].as_u64().unwrap()).collect();
    let ascending: Vec<u64> = (1..=log.len() as u64).collect();
    assert_eq!(numbers, ascending, "another gateway goes on with the numbers");
    let logged = |outcome: &str, address: Ipv4Addr, port: u16| {
        let of_this = |entry: &&Value| {
            entry["outcome"] == outcome
                && entry["address"] == address.to_string()
                && entry["port"] == port
        };
        log.iter().find(of_this).unwrap_or_else(|| panic!("{outcome} {address}: {log:#?}"))
    };
    logged("refused", SERVER, FORBIDDEN);
    let ended = logged("ended", SERVER, ALLOWED);
    assert!(ended["bytes_out"].as_u64() > Some(0) && ended["bytes_in"].as_u64() > Some(0));
    assert!(forkd.json(&["info", id])["network_refusals"].as_u64() > Some(0));
    let metrics = forkd.ok(&["metrics", "forkd_network_flows"]);
    let refused = metrics.lines().find(|line| line.contains("refused")).expect("it is counted");
    assert!(!refused.ends_with(" 0"), "{metrics}");
}

#[test]
fn policies_hold_over_branches_changes_and_deaths() {
    let internet = Internet::with(&[SERVER, OTHER]);
    for (address, port) in [(SERVER, ALLOWED), (SERVER, FORBIDDEN), (OTHER, ALLOWED)] {
        internet.serve(address, port);
    }
    let forkd = Forkd::new();
    internet.template(&forkd, "python", "py", 256);
    let allow = format!("{SERVER}:{ALLOWED}");
    let started = forkd.json(&["fork", "py", "--allow", &allow]);
    assert_eq!(started[0]["guest_addr"], "10.42.0.2", "{started}");
    assert_eq!(started[0]["network"]["allow_out"][0], allow.as_str(), "{started}");
    let source = guest(&forkd, &started[0]);
    source.eval(TOOLS);
    source.assert_list(&internet);
    let begun = Instant::now();
    assert_eq!(source.verdict(HOST, 22), "'ConnectionRefusedError'");
    assert!(begun.elapsed() < Duration::from_secs(30), "a refusal is told at once");

    // The source's connection goes on; the child has another policy's worth of nothing.
    source.hold();
    let branch = forkd.json(&["branch", &source.id, "-n", "1", "--tag", "b"]);
    let child = guest(&forkd, &branch["children"][0]["sandbox"]);
    assert_eq!(child.speak(), "'ConnectionResetError'");
    assert_eq!(source.speak(), "b'still here'");
    child.assert_list(&internet);
    let closed = forkd.json(&["branch", &source.id, "-n", "1", "--no-internet"]);
    let closed = guest(&forkd, &closed["children"][0]["sandbox"]);
    assert_eq!(closed.verdict(SERVER, ALLOWED), "'ConnectionRefusedError'");
    let later = guest(&forkd, &forkd.json(&["fork", "b"])[0]);
    later.assert_list(&internet);
    assert_eq!(later.speak(), "'ConnectionResetError'");
    assert_eq!(source.speak(), "b'still here'");

    // Another policy ends what it does not permit.
    let other = format!("{OTHER}:{ALLOWED}");
    forkd.ok(&["network", "set", &source.id, "--allow", &other]);
    assert_eq!(source.speak(), "'ConnectionResetError'");
    assert_eq!(source.verdict(SERVER, ALLOWED), "'ConnectionRefusedError'");
    assert_eq!(source.verdict(OTHER, ALLOWED), "'yes'");
    child.assert_list(&internet);
    forkd.ok(&["network", "set", &source.id, "--allow", &allow]);

    // A daemon that dies takes no connection along, and the next one knows the policy.
    source.hold();
    kill_daemon(&forkd);
    internet.run(&forkd, &["ls"]);
    assert_eq!(source.speak(), "b'still here'");
    source.assert_list(&internet);

    // A gateway that dies takes connections along, and nothing else.
    let first = gateway(&forkd).expect("a gateway");
    kill_and_wait(first);
    wait_until("another gateway", || gateway(&forkd).is_some());
    wait_until("the source is joined to it", || source.verdict(SERVER, ALLOWED) == "'yes'");
    source.assert_list(&internet);
    assert_eq!(source.speak(), "'ConnectionResetError'");
    child.assert_list(&internet);
    assert_told(&source);

    forkd.ok(&["stop", "--stop-sandboxes"]);
    wait_until("the gateway ends", || gateway(&forkd).is_none());
}
