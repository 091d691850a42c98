//! Private networks: members reach each other by name and alias, and nobody else reaches them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use forkd_netd_protocol::{Attach, Flow};
use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkLeave};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use smoltcp::socket::tcp::State;

use crate::guest::{Ended, Guest, Stream};
use crate::world::{World, beginning, link};

/// Networks by name, number and the member's number.
type Networks<'a> = &'a [(&'a str, u16, u16)];

fn joined(owner: &str, policy: &str, networks: Networks<'_>) -> Attach {
    let alias = |&(name, network, member): &(&str, u16, u16)| {
        (name.parse().unwrap(), Alias::new(network, member).unwrap())
    };
    let networks = networks.iter().map(alias).collect();
    let owner = owner.parse().unwrap();
    Attach { owner, networks, ..beginning(&SandboxId::random(), policy) }
}

impl World {
    fn member(&self, attach: Attach) -> Guest {
        let (gateway, guest) = link();
        let sandbox = attach.sandbox.clone();
        self.attach_as(attach, &gateway);
        Guest::new(sandbox, guest)
    }

    fn set_networks(&self, guest: &Guest, networks: Networks<'_>) {
        let networks = joined("ann", "", networks).networks;
        self.ask(self.client.set_networks(guest.sandbox.clone(), networks)).unwrap();
    }

    /// Both ends of a connection to a server of `to`.
    fn joined(&self, from: &Guest, to: &Guest, at: IpAddr) -> (Stream, Stream) {
        let server = to.listen(8080);
        let client = from.connect(&SocketAddr::new(at, 8080).to_string()).unwrap();
        self.wait("the server has it", || server.state() == State::Established);
        (client, server)
    }
}

fn ip(network: u16, member: u16) -> IpAddr {
    Alias::new(network, member).unwrap().ipv4().into()
}

fn ipv6(network: u16, member: u16) -> IpAddr {
    Alias::new(network, member).unwrap().ipv6().into()
}

fn name(guest: &Guest, network: &str) -> String {
    format!("{}.{network}.forkd.internal", guest.sandbox)
}

/// Bytes that tell their place.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|n| (n.wrapping_mul(31) + n / 251 + seed).to_le_bytes()[0]).collect()
}

#[test]
fn members_reach_each_other_by_name_whatever_the_policy() {
    let world = World::new();
    let closed = Attach { leave: NetworkLeave::None, ..joined("ann", "-all", &[("team", 3, 1)]) };
    let one = world.member(closed);
    let named = Some("db".to_owned());
    let two = world.member(Attach { name: named, ..joined("ann", "-all", &[("team", 3, 2)]) });
    for called in [name(&two, "team"), "db.team.forkd.internal".to_owned()] {
        assert_eq!(one.look_up(&called), Some(ip(3, 2)), "{called}");
    }
    let found = one.resolve("10.42.0.1:53", &name(&two, "team"), RecordType::AAAA);
    assert_eq!(found, (ResponseCode::NoError, vec![ipv6(3, 2)]));
    let none = one.resolve("10.42.0.1:53", &name(&two, "team"), RecordType::TXT);
    assert_eq!(none, (ResponseCode::NoError, vec![]));
    for (at, from) in [(ip(3, 2), ip(3, 1)), (ipv6(3, 2), ipv6(3, 1))] {
        let (client, server) = world.joined(&one, &two, at);
        assert_eq!(server.peer().ip(), from, "a server sees who it is");
        server.write_all(b"first").unwrap();
        assert_eq!(client.read().unwrap(), b"first", "a server may speak first");
        client.finish();
        assert_eq!(server.read(), Err(Ended::Finished));
        server.write_all(b"last").unwrap();
        server.finish();
        assert_eq!(client.read_all().unwrap(), b"last", "half closed");
    }
    let (client, server) = world.joined(&two, &two, ip(3, 2));
    client.write_all(b"me").unwrap();
    assert_eq!(server.read().unwrap(), b"me", "itself");
    assert!(world.seen.queries.lock().unwrap().is_empty(), "no query leaves the host");
    let reasons = |guest: &Guest| -> Vec<(String, String, String)> {
        let text = |line: &serde_json::Value, field: &str| line[field].as_str().unwrap().to_owned();
        let lines = world.log(&guest.sandbox).into_iter();
        lines.map(|l| (text(&l, "address"), text(&l, "reason"), text(&l, "name"))).collect()
    };
    let out = (ip(3, 2).to_string(), "network: team".to_owned(), name(&two, "team"));
    world.wait("the client's end is logged", || reasons(&one).contains(&out));
    let inbound = (ip(3, 1).to_string(), "inbound, network: team".to_owned(), name(&one, "team"));
    world.wait("the server's end is logged", || reasons(&two).contains(&inbound));
}

#[test]
fn eight_mebibytes_each_way_are_exact_at_once_in_many_flows() {
    const BYTES: usize = 8 << 20;
    let world = World::new();
    let one = world.member(joined("ann", "", &[("team", 0, 1)]));
    let two = world.member(joined("ann", "", &[("team", 0, 2)]));
    let pairs: Vec<_> = (0..4).map(|_| world.joined(&one, &two, ip(0, 2))).collect();
    std::thread::scope(|scope| {
        for (n, (client, server)) in pairs.iter().enumerate() {
            for (from, to, seed) in [(client, server, n), (server, client, n + 100)] {
                scope.spawn(move || {
                    from.write_all(&bytes(BYTES / 4, seed)).unwrap();
                    from.finish();
                });
                scope.spawn(move || {
                    assert!(to.read_all().unwrap() == bytes(BYTES / 4, seed), "flow {n}");
                });
            }
        }
    });
}

#[test]
fn a_member_that_does_not_read_holds_up_its_peer_and_nobody_else() {
    let world = World::new();
    let one = world.member(joined("ann", "", &[("team", 0, 1)]));
    let two = world.member(joined("ann", "", &[("team", 0, 2)]));
    let (slow, reader) = world.joined(&one, &two, ip(0, 2));
    let data = bytes(4 << 20, 1);
    let mut written = 0;
    let mut rested = Instant::now();
    // Until nothing has gone for a while: the buffers on the way are full.
    while written < data.len() && rested.elapsed() < Duration::from_millis(500) {
        let more = slow.write(&data[written..]).unwrap();
        if more > 0 {
            rested = Instant::now();
        }
        written += more;
    }
    assert!(written < data.len(), "somebody holds 4 MiB");
    let (client, server) = world.joined(&one, &two, ip(0, 2));
    client.write_all(b"beside it").unwrap();
    assert_eq!(server.read().unwrap(), b"beside it");
    let mut got = Vec::new();
    while got.len() < data.len() {
        written += slow.write(&data[written..]).unwrap();
        if reader.unread() > 0 {
            got.extend(reader.read().unwrap());
        }
    }
    assert!(got == data);
}

#[test]
fn nobody_else_is_reached_and_every_refusal_is_at_once() {
    let world = World::new();
    let inside = world.member(joined("ann", "", &[("team", 0, 1)]));
    inside.listen(8080);
    let strangers = [
        ("no member", world.member(joined("ann", "", &[]))),
        ("member of another network", world.member(joined("ann", "", &[("lab", 1, 2)]))),
        ("another owner's", world.member(joined("bob", "", &[("team", 0, 2)]))),
        ("another owner's without internet", world.member(joined("bob", "-all", &[("x", 0, 3)]))),
    ];
    for (who, guest) in &strangers {
        let found = guest.resolve("10.42.0.1:53", &name(&inside, "team"), RecordType::A);
        assert_eq!(found, (ResponseCode::NXDomain, vec![]), "{who}");
        for at in [ip(0, 1), ipv6(0, 1)] {
            let start = Instant::now();
            let refused = guest.connect(&SocketAddr::new(at, 8080).to_string());
            assert_eq!(refused.err(), Some(Ended::Reset), "{who} at {at}");
            println!("{who}: refused after {:?}", start.elapsed());
        }
    }
    for at in [ip(0, 999), ipv6(0, 999), "10.43.3.255".parse().unwrap()] {
        let guessed = inside.connect(&SocketAddr::new(at, 8080).to_string());
        assert_eq!(guessed.err(), Some(Ended::Reset), "{at}");
    }
    let other = world.member(joined("ann", "", &[("team", 0, 2)]));
    let port = other.connect(&SocketAddr::new(ip(0, 1), 8081).to_string());
    assert_eq!(port.err(), Some(Ended::Reset), "nothing listens there");
    assert_eq!(other.exchange(&SocketAddr::new(ip(0, 1), 9).to_string(), 6000, b"x"), None);
    assert_eq!(world.ask(world.client.usage()).unwrap().connections, 0);
    assert!(world.seen.connections.lock().unwrap().is_empty());
    assert!(world.seen.queries.lock().unwrap().is_empty(), "no query leaves the host");
}

#[test]
fn a_leave_ends_names_and_connections_and_a_join_begins_them() {
    let world = World::new();
    let one = world.member(joined("ann", "", &[("team", 0, 1), ("lab", 1, 1)]));
    let two = world.member(joined("ann", "", &[("lab", 1, 2)]));
    assert_eq!(one.look_up(&name(&two, "team")), None);
    world.set_networks(&two, &[("team", 0, 2), ("lab", 1, 2)]);
    assert_eq!(one.look_up(&name(&two, "team")), Some(ip(0, 2)));
    let kept = world.joined(&one, &two, ip(1, 2));
    let out = world.joined(&two, &one, ip(0, 1));
    let into = world.joined(&one, &two, ip(0, 2));
    world.set_networks(&two, &[("lab", 1, 2)]);
    assert_eq!(one.look_up(&name(&two, "team")), None);
    for (which, stream) in [("out", &out.0), ("out, its peer", &out.1), ("in", &into.0)] {
        assert_eq!(stream.read(), Err(Ended::Reset), "{which}");
    }
    assert_eq!(into.1.read(), Err(Ended::Reset));
    assert_eq!(one.connect(&SocketAddr::new(ip(0, 2), 8080).to_string()).err(), Some(Ended::Reset));
    assert_eq!(two.connect(&SocketAddr::new(ip(0, 1), 8080).to_string()).err(), Some(Ended::Reset));
    kept.0.write_all(b"still").unwrap();
    assert_eq!(kept.1.read().unwrap(), b"still");
    // An end and a reset of the other side are told apart.
    kept.1.abort();
    assert_eq!(kept.0.read(), Err(Ended::Reset));
    let last = world.joined(&one, &two, ip(1, 2));
    world.ask(world.client.detach(two.sandbox.clone())).unwrap();
    assert_eq!(last.0.read(), Err(Ended::Reset), "its sandbox has ended");
    assert_eq!(one.look_up(&name(&two, "lab")), None);
}

#[test]
fn a_branch_keeps_the_connections_of_its_source_and_ends_those_of_the_child() {
    let world = World::new();
    let peer = world.member(joined("ann", "", &[("team", 0, 1)]));
    let source = world.member(joined("ann", "", &[("team", 0, 2)]));
    let (out, its_peer) = world.joined(&source, &peer, ip(0, 1));
    let (from_peer, into) = world.joined(&peer, &source, ip(0, 2));
    let flows = world.ask(world.client.hold(source.sandbox.clone())).unwrap();
    let aliases = flows.iter().filter(|f| matches!(f, Flow::Tcp(f) if f.remote == ip(0, 1)));
    assert_eq!(aliases.count(), 2, "{flows:?}");
    world.ask(world.client.release(source.sandbox.clone())).unwrap();
    its_peer.write_all(b"on").unwrap();
    assert_eq!(out.read().unwrap(), b"on");
    from_peer.write_all(b"wards").unwrap();
    assert_eq!(into.read().unwrap(), b"wards");
    // A child is the same memory on another link. Its source is gone here, and what is seen is that
    // its guest learns it from the child's link.
    let stopped = source.stop();
    let (gateway, theirs) = link();
    let inherited = Attach { inherited: flows, ..joined("ann", "", &[("team", 0, 3)]) };
    let child = inherited.sandbox.clone();
    world.attach_as(inherited, &gateway);
    let child = stopped.resume(child, theirs);
    let start = Instant::now();
    world.wait("both have ended", || {
        [&out, &into].iter().all(|stream| stream.state() == State::Closed)
    });
    println!("inherited connections ended after {:?}", start.elapsed());
    assert_eq!(its_peer.state(), State::Established, "the source's own goes on");
    assert_eq!(peer.look_up(&name(&child, "team")), Some(ip(0, 3)));
    let (client, server) = world.joined(&peer, &child, ip(0, 3));
    client.write_all(b"hi").unwrap();
    assert_eq!(server.read().unwrap(), b"hi", "the child's own connections work");
}
