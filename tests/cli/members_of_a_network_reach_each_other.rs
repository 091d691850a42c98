//! Sandboxes in a private network reach each other by name, with the same port and the same address
//! inside, and whatever else they may reach. Nobody else reaches them. Connections outlive a branch
//! of either end; names and addresses outlive the gateway and the daemon.
//!
//! Method: the command line. Each guest has inherited one Python server, which says who it is and
//! whom it sees, and then repeats what it hears.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::forkd::Forkd;
use crate::processes::{kill_and_wait, kill_daemon, wait_until};
use crate::sandboxes_reach_the_network_by_policy::gateway;

/// What each guest's Python has at hand.
const TOOLS: &str = r#"
import hashlib, os, socket, threading
who = 'nobody'
def answer(connection, peer):
    with connection:
        try:
            connection.sendall(f'{who} {peer[0]}\n'.encode())
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:
            pass
def serve(address, port):
    listener = socket.create_server((address, port), backlog=50)
    def accept():
        while True:
            threading.Thread(target=answer, args=listener.accept(), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
def reach(host, port=8080):
    connection = socket.create_connection((host, port), timeout=60)
    return connection, connection.makefile('rb').readline().decode().strip()
def visit(host, port=8080):
    try:
        connection, greeting = reach(host, port)
        connection.close()
        return greeting
    except OSError as error:
        return type(error).__name__
def speak(word):
    try:
        held.sendall(word)
        return held.recv(100)
    except OSError as error:
        return type(error).__name__
def exchange(host, size):
    connection, _ = reach(host)
    sent = os.urandom(size)
    def send():
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send)
    sender.start()
    got = b''.join(iter(lambda: connection.recv(65536), b''))
    sender.join()
    return got == sent
serve('0.0.0.0', 8080)
serve('127.0.0.1', 8081)
"#;

struct Guest<'a> {
    forkd: &'a Forkd,
    id: String,
}

impl<'a> Guest<'a> {
    fn of(forkd: &'a Forkd, sandbox: &Value) -> Self {
        let id = sandbox["id"].as_str().unwrap_or_else(|| panic!("no id: {sandbox}"));
        Self { forkd, id: id.to_owned() }
    }

    fn eval(&self, code: &str) -> String {
        self.forkd.ok(&["eval", &self.id, code])
    }

    /// By what other members of `team` reach it.
    fn name(&self) -> String {
        format!("{}.team.forkd.internal", self.id)
    }

    /// What other members have for it, by network.
    fn addresses(&self) -> BTreeMap<String, String> {
        let info = self.forkd.json(&["info", &self.id]);
        let networks = info["networks"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        networks.iter().map(|it| (text(&it["network"]), text(&it["ipv4"]))).collect()
    }

    fn address(&self) -> String {
        self.addresses()["team"].clone()
    }

    /// What the server at `host` says.
    fn visit(&self, host: &str) -> String {
        self.eval(&format!("visit('{host}')"))
    }

    fn hold(&self, to: &Guest<'_>) {
        self.eval(&format!("held, _ = reach('{}')", to.name()));
        assert_eq!(self.speak(), "b'still here'");
    }

    fn speak(&self) -> String {
        self.eval("speak(b'still here')")
    }

    /// It sees the other as what it is, and is seen as what it is.
    fn assert_reaches(&self, other: &Guest<'_>, who: &str) {
        let greeting = format!("'{who} {}'", self.address());
        assert_eq!(self.visit(&other.name()), greeting);
        assert_eq!(self.visit(&other.address()), greeting);
    }
}

const REFUSED: &str = "'ConnectionRefusedError'";
const RESET: &str = "'ConnectionResetError'";
const UNKNOWN: &str = "'gaierror'";

/// A snapshot in which the server runs, and three members of `team` that were started from it.
fn team(forkd: &Forkd) -> [Guest<'_>; 3] {
    forkd.template("python", "py", 256);
    let seed = Guest::of(forkd, &forkd.json(&["fork", "py", "--no-internet"])[0]);
    seed.eval(TOOLS);
    forkd.ok(&["branch", &seed.id, "--tag", "base"]);
    forkd.ok(&["rm", &seed.id]);
    assert_eq!(forkd.ok(&["network", "create", "team"]), "team");
    let joined = forkd.json(&["fork", "base", "-n", "3", "--join", "team"]);
    assert_eq!(joined[0]["network"]["allow_internet_access"], false, "as it was: {joined}");
    let members = [0, 1, 2].map(|n| Guest::of(forkd, &joined[n]));
    for (n, member) in members.iter().enumerate() {
        member.eval(&format!("who = 'member{n}'"));
    }
    members
}

#[test]
fn members_reach_each_other_and_nobody_else_does() {
    let forkd = Forkd::held_to_contract();
    let members = team(&forkd);
    for from in &members {
        for (n, to) in members.iter().enumerate() {
            from.assert_reaches(to, &format!("member{n}"));
        }
    }
    let [one, two, three] = &members;
    let private = one.eval(&format!("visit('{}', 8081)", two.name()));
    assert_eq!(private, REFUSED, "a loopback address is the guest's own");
    assert_eq!(one.eval(&format!("exchange('{}', 8 << 20)", two.name())), "True");

    // A fourth is no member: by name, by address, and as a member of another network.
    let fourth = Guest::of(&forkd, &forkd.json(&["fork", "base", "--metadata", "name=db"])[0]);
    let address = one.address();
    assert_eq!(
        (fourth.visit(&one.name()), fourth.visit(&address)),
        (UNKNOWN.into(), REFUSED.into())
    );
    forkd.ok(&["network", "create", "lab"]);
    forkd.ok(&["network", "join", &fourth.id, "lab"]);
    assert_eq!(
        (fourth.visit(&one.name()), fourth.visit(&address)),
        (UNKNOWN.into(), REFUSED.into())
    );
    assert_eq!(one.visit(&fourth.name()), UNKNOWN);
    let name = forkd.ok(&["network", "join", &fourth.id, "team"]);
    assert_eq!(name, fourth.name());
    fourth.eval("who = 'the fourth'");
    one.assert_reaches(&fourth, "the fourth");
    assert_eq!(one.visit("db.team.forkd.internal"), format!("'the fourth {address}'"));
    assert_eq!(forkd.ok(&["network", "ls", "team", "-q"]).lines().count(), 4);

    // It leaves: its connections end, and nobody finds it.
    fourth.hold(one);
    two.hold(&fourth);
    one.hold(three);
    forkd.ok(&["network", "leave", &fourth.id, "team"]);
    assert_eq!((fourth.speak(), two.speak()), (RESET.into(), RESET.into()));
    assert_eq!(
        (fourth.visit(&address), one.visit(&fourth.name())),
        (REFUSED.into(), UNKNOWN.into())
    );
    assert_eq!(one.speak(), "b'still here'", "those of others go on");
    forkd.ok(&["network", "rm", "team"]);
    assert_eq!(one.speak(), RESET);
    assert_eq!(one.visit(&three.name()), UNKNOWN);
    let logged = |guest: &Guest<'_>, reason: &str| {
        let log = forkd.ok(&["network", "log", &guest.id, "--json"]);
        assert!(log.contains(&format!("\"{reason}\"")), "{reason}: {log}");
    };
    logged(one, "network: team");
    logged(three, "inbound, network: team");
}

#[test]
fn networks_outlive_branches_and_deaths() {
    let forkd = Forkd::new();
    let [one, two, three] = team(&forkd);
    // Both ends are branched: theirs go on, and the children have none of them.
    one.hold(&two);
    three.hold(&one);
    let child_of = |guest: &Guest<'_>| {
        let branch = forkd.json(&["branch", &guest.id, "-n", "1"]);
        Guest::of(&forkd, &branch["children"][0]["sandbox"])
    };
    let (child, other) = (child_of(&one), child_of(&two));
    for guest in [&one, &three] {
        assert_eq!(guest.speak(), "b'still here'");
    }
    assert_eq!(child.speak(), RESET);
    child.eval("who = 'the child'");
    other.eval("who = 'another child'");
    assert_ne!(child.address(), one.address());
    one.assert_reaches(&child, "the child");
    child.assert_reaches(&two, "member1");
    child.assert_reaches(&other, "another child");
    three.assert_reaches(&one, "member0");

    let before = [&one, &two, &child].map(Guest::addresses);
    let dead = gateway(&forkd).expect("there is one");
    kill_and_wait(dead);
    wait_until("there is another gateway", || gateway(&forkd).is_some_and(|next| next != dead));
    // It has the links when it says so of each.
    wait_until("they are reached by name", || {
        one.visit(&child.name()) == format!("'the child {}'", one.address())
    });
    assert_eq!([&one, &two, &child].map(Guest::addresses), before);
    child.assert_reaches(&two, "member1");
    assert_eq!(one.speak(), RESET);

    one.hold(&two);
    kill_daemon(&forkd);
    assert_eq!([&one, &two, &child].map(Guest::addresses), before);
    assert_eq!(one.speak(), "b'still here'", "the gateway has not ended");
    two.assert_reaches(&child, "the child");
    assert_eq!(forkd.ok(&["network", "ls", "-q"]), "team");
    forkd.ok(&["rm", &two.id]);
    assert_eq!(one.speak(), RESET);
    assert_eq!(forkd.ok(&["network", "ls", "team", "-q"]).lines().count(), 4);
}
