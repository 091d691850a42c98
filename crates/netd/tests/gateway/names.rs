//! The resolver, and what a change of the policy does.

use forkd_types::network::NetworkLeave;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::guest::Ended;
use crate::world::{World, parse};

#[test]
fn the_resolver_answers_whatever_address_is_asked() {
    let world = World::new();
    world.name("a.example", &["203.0.113.7", "2001:db8::7"]);
    let guest = world.guest("");
    for server in ["10.42.0.1:53", "[fd66:6f72:6b64::1]:53", "8.8.8.8:53", "203.0.113.1:53"] {
        let (code, addresses) = guest.resolve(server, "a.example", RecordType::A);
        assert_eq!((code, addresses.len()), (ResponseCode::NoError, 1), "{server}");
    }
    let addresses = guest.resolve("10.42.0.1:53", "A.Example.", RecordType::AAAA).1;
    assert_eq!(addresses, ["2001:db8::7".parse::<std::net::IpAddr>().unwrap()]);
    let queries = world.seen.queries.lock().unwrap().len();
    let https = guest.resolve("10.42.0.1:53", "a.example", RecordType::HTTPS);
    assert_eq!(https, (ResponseCode::NoError, vec![]), "no keys that hide a name");
    assert_eq!(world.seen.queries.lock().unwrap().len(), queries);
    let unknown = guest.resolve("10.42.0.1:53", "unknown.example", RecordType::A);
    assert_eq!(unknown.0, ResponseCode::NXDomain);
}

#[test]
fn a_guest_finds_itself_by_its_own_name_and_nobody_else_does() {
    let world = World::new();
    let (guest, other) = (world.guest("-all"), world.guest("-all"));
    let own = guest.sandbox.as_str();
    for (kind, address) in [(RecordType::A, "10.42.0.2"), (RecordType::AAAA, "fd66:6f72:6b64::2")] {
        let (code, addresses) = guest.resolve("10.42.0.1:53", own, kind);
        let address: std::net::IpAddr = address.parse().unwrap();
        assert_eq!((code, addresses), (ResponseCode::NoError, vec![address]));
    }
    assert_eq!(other.resolve("10.42.0.1:53", own, RecordType::A).0, ResponseCode::NXDomain);
    assert!(world.seen.queries.lock().unwrap().is_empty());
}

#[test]
fn the_resolver_answers_in_streams() {
    let world = World::new();
    world.name("a.example", &["203.0.113.7"]);
    world.serve_echo(443);
    let guest = world.guest("+a.example:443");
    let stream = guest.connect("8.8.8.8:53").unwrap();
    for (name, answers) in [("a.example.", 1), ("b.example.", 0), ("a.example.", 1)] {
        let mut query = hickory_proto::op::Message::query();
        let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
        query.add_query(hickory_proto::op::Query::query(name, RecordType::A));
        let message = query.to_vec().unwrap();
        let mut framed = u16::try_from(message.len()).unwrap().to_be_bytes().to_vec();
        framed.extend(message);
        // In two pieces.
        stream.write_all(&framed[..3]).unwrap();
        stream.write_all(&framed[3..]).unwrap();
        let mut got = Vec::new();
        while got.len() < 2 || got.len() < 2 + usize::from(u16::from_be_bytes([got[0], got[1]])) {
            got.extend(stream.read().unwrap());
        }
        let reply = hickory_proto::op::Message::from_vec(&got[2..]).unwrap();
        assert_eq!((reply.answers.len(), reply.metadata.id), (answers, query.metadata.id));
    }
    assert!(guest.connect("203.0.113.7:443").is_ok(), "what a stream told counts");
    assert_eq!(*world.seen.queries.lock().unwrap(), ["a.example", "a.example"]);
}

#[test]
fn a_child_knows_the_names_of_its_parent() {
    let world = World::new();
    world.name("a.example", &["203.0.113.7"]);
    world.serve_echo(443);
    let parent = world.guest("+a.example");
    parent.look_up("a.example").unwrap();
    let from = Some(parent.sandbox.clone());
    let child = world.guest_with("+a.example", NetworkLeave::Public, Vec::new(), from);
    assert!(child.connect("203.0.113.7:443").is_ok());
    let stranger = world.guest("+a.example");
    assert_eq!(stranger.connect("203.0.113.7:443").err(), Some(Ended::Reset));
}

#[test]
fn a_change_resets_what_is_no_longer_permitted_and_spares_the_rest() {
    let world = World::new();
    world.serve_echo(80);
    let guest = world.guest("");
    let kept = guest.connect("203.0.113.7:80").unwrap();
    let lost = guest.connect("198.51.100.7:80").unwrap();
    assert_eq!(guest.exchange("203.0.113.9:9", 6000, b"x"), None, "nobody is there");
    let policy = parse("+203.0.113.0/24:80");
    let set = world.client.set_policy(guest.sandbox.clone(), policy, NetworkLeave::Public);
    world.ask(set).unwrap();
    assert_eq!(lost.read(), Err(Ended::Reset));
    kept.write_all(b"hi").unwrap();
    assert_eq!(kept.read().unwrap(), b"hi");
    assert_eq!(guest.connect("198.51.100.7:80").err(), Some(Ended::Reset));
}
