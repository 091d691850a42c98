//! A guest under an allow-list tries to get out; the internet counts what it sees.

use hickory_proto::rr::RecordType;

use crate::guest::{Ended, Guest};
use crate::world::{HOST, World};

const POLICY: &str = "+good.example:80 +good.example:443 +*.sub.example +198.51.100.9:5432";
const GOOD: &str = "203.0.113.7";

fn world() -> World {
    let world = World::new();
    for port in [22, 25, 53, 80, 443, 853, 5432, 8080] {
        world.serve_echo(port);
    }
    for at in ["203.0.113.7:443", "203.0.113.7:123", "203.0.113.7:853", "8.8.8.8:53"] {
        world.serve_datagrams(at);
    }
    world.name("good.example", &[GOOD]);
    world.name("evil.example", &[GOOD, "203.0.113.66"]);
    world.name("a.sub.example", &["127.0.0.1", "169.254.169.254", "10.1.2.3", HOST, "203.0.113.8"]);
    world
}

/// What comes back when the guest says this there.
pub(crate) fn say(guest: &Guest, to: &str, first: &[u8]) -> Result<Vec<u8>, Ended> {
    let stream = guest.connect(to)?;
    stream.write_all(first)?;
    let mut got = Vec::new();
    while got.len() < first.len() {
        got.extend(stream.read()?);
    }
    Ok(got)
}

pub(crate) fn hello(server: &str) -> Vec<u8> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server = server.to_owned().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config.into(), server).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

pub(crate) fn request(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[test]
fn only_what_the_list_allows_arrives() {
    let world = world();
    let guest = world.guest(POLICY);
    // Nothing is known by name yet.
    for to in ["203.0.113.7:443", "203.0.113.7:80", "203.0.113.66:443", "8.8.8.8:53000"] {
        assert_eq!(guest.connect(to).err(), Some(Ended::Reset), "{to}");
    }
    assert_eq!(guest.look_up("good.example"), Some(GOOD.parse().unwrap()));
    assert_eq!(guest.look_up("evil.example"), None);
    assert_eq!(guest.look_up("secret-in-a-name.evil.example"), None);
    let rebound = guest.resolve("10.42.0.1:53", "a.sub.example", RecordType::A).1;
    assert_eq!(rebound, ["203.0.113.8".parse::<std::net::IpAddr>().unwrap()]);

    let good = request("good.example");
    let https = hello("good.example");
    assert_eq!(say(&guest, "203.0.113.7:80", good.as_bytes()).unwrap(), good.as_bytes());
    assert_eq!(say(&guest, "203.0.113.7:443", &https).unwrap(), https);
    assert_eq!(say(&guest, "203.0.113.8:22", b"SSH-2.0-x\r\n").unwrap(), b"SSH-2.0-x\r\n");
    assert_eq!(say(&guest, "198.51.100.9:5432", b"anything").unwrap(), b"anything");

    try_addresses(&guest);
    try_first_bytes(&guest);
    try_datagrams(&guest);
    check_what_arrived(&world);
}

fn try_addresses(guest: &Guest) {
    for to in [
        "203.0.113.66:443",
        "203.0.113.7:22",
        "203.0.113.7:8080",
        "203.0.113.7:853",
        "203.0.113.8:25",
        "203.0.113.8:853",
        "198.51.100.9:5433",
        "198.51.100.10:5432",
        "[2001:db8::7]:443",
        "[::ffff:203.0.113.66]:443",
        "[::ffff:127.0.0.1]:80",
        "[64:ff9b::7f00:1]:80",
        "[64:ff9b::cb00:7142]:443",
        "[2002:cb00:7142::1]:443",
        "127.0.0.1:80",
        "10.42.0.1:80",
        "10.1.2.3:22",
        "169.254.169.254:80",
        "192.0.2.1:22",
        "192.0.2.2:22",
        "8.8.8.8:443",
        "8.8.8.8:853",
    ] {
        assert_eq!(guest.connect(to).err(), Some(Ended::Reset), "{to}");
    }
}

fn try_first_bytes(guest: &Guest) {
    let (good, evil) = (request("good.example"), request("evil.example"));
    for (to, first) in [
        ("203.0.113.7:80", evil.as_bytes()),
        ("203.0.113.7:443", &hello("evil.example")),
        ("203.0.113.7:443", &hello("203.0.113.7")),
        ("203.0.113.7:443", evil.as_bytes()),
        ("203.0.113.7:80", &hello("evil.example")),
        // Allowed, but not for this address.
        ("203.0.113.7:443", &hello("a.sub.example")),
        ("203.0.113.8:443", &hello("good.example")),
        ("203.0.113.7:80", b"GET http://evil.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n"),
        ("203.0.113.7:80", b"CONNECT evil.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n"),
        ("203.0.113.7:80", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("203.0.113.7:80", b"\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        ("203.0.113.7:80", b"GET /\r\n\r\n"),
    ] {
        let shown = String::from_utf8_lossy(first);
        assert!(say(guest, to, first).is_err(), "{to} took {shown}");
    }
    // The first request passes, the second does not.
    let stream = guest.connect("203.0.113.7:80").unwrap();
    stream.write_all(good.as_bytes()).unwrap();
    stream.read().unwrap();
    stream.write_all(evil.as_bytes()).unwrap();
    assert_eq!(stream.read_all(), Err(Ended::Reset));
}

fn try_datagrams(guest: &Guest) {
    for to in ["203.0.113.7:443", "203.0.113.7:123", "203.0.113.7:853", "224.0.0.251:5353"] {
        if to.starts_with("224") {
            guest.send_frame(&crate::guest::datagram(to.parse().unwrap(), 6000, b"x"));
        } else {
            assert_eq!(guest.exchange(to, 6000, b"x"), None, "{to}");
        }
    }
}

fn check_what_arrived(world: &World) {
    let connections = world.seen.connections.lock().unwrap().clone();
    let wanted = ["203.0.113.7:80", "203.0.113.7:443", "203.0.113.8:22", "198.51.100.9:5432"];
    for (at, first) in &connections {
        // A connection that a name allows is made before its first bytes are known.
        let shown = String::from_utf8_lossy(first);
        assert!(wanted.contains(&at.to_string().as_str()) || *first == b"", "{at}: {shown}");
        assert!(!shown.contains("evil"), "{at}: {shown}");
    }
    let spoken: Vec<_> = connections.iter().filter(|(_, first)| !first.is_empty()).collect();
    assert_eq!(spoken.len(), 4 + 1, "the four, and the first of two requests");
    assert!(world.seen.datagrams.lock().unwrap().is_empty());
    assert_eq!(*world.seen.queries.lock().unwrap(), ["good.example", "a.sub.example"]);
}

#[test]
fn with_an_empty_list_nothing_arrives() {
    let world = world();
    let guest = world.guest("-all");
    assert_eq!(guest.look_up("good.example"), None);
    for to in ["203.0.113.7:443", "203.0.113.7:80", "198.51.100.9:5432", "[2001:db8::7]:80"] {
        assert_eq!(guest.connect(to).err(), Some(Ended::Reset), "{to}");
    }
    assert_eq!(guest.exchange("203.0.113.7:123", 6000, b"x"), None);
    assert!(world.seen.connections.lock().unwrap().is_empty());
    assert!(world.seen.datagrams.lock().unwrap().is_empty());
    assert!(world.seen.queries.lock().unwrap().is_empty());
}

#[test]
fn without_a_list_the_host_and_private_networks_stay_closed() {
    let world = world();
    let guest = world.guest("");
    assert_eq!(say(&guest, "203.0.113.66:80", b"hi").unwrap(), b"hi");
    world.on_host(async {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:8080").await.unwrap();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    });
    for to in
        ["192.0.2.1:8080", "127.0.0.1:8080", "10.42.0.1:8080", "10.1.2.3:80", "192.168.1.1:80"]
    {
        assert_eq!(guest.connect(to).err(), Some(Ended::Reset), "{to}");
    }
    assert_eq!(world.seen.connections.lock().unwrap().len(), 1);
}

#[test]
fn the_hosts_own_service_is_reached_where_it_is_listed() {
    let world = world();
    world.on_host(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:5432").await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok();
            }
        });
    });
    let leave = forkd_types::network::NetworkLeave::Any;
    let guest = world.guest_with("+host:5432", leave, Vec::new(), None);
    assert_eq!(say(&guest, "10.42.0.1:5432", b"hi").unwrap(), b"hi");
    assert_eq!(guest.connect("10.42.0.1:5433").err(), Some(Ended::Reset));
    assert!(world.guest("+host:5432").connect("10.42.0.1:5432").is_err(), "no leave");
}
