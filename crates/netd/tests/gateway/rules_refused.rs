//! Hosts with header rules: what is refused, and what is left alone.

use crate::guest::Ended;
use crate::rules::{Client, SERVER, connected};
use crate::secure::{Authority, full};
use crate::world::World;

const NAME: &str = "api.example";
const RULE: &str = "@api.example|authorization|Bearer_${secrets.KEY}";
const PLAIN: &[u8] = b"GET /x HTTP/1.1\r\nHost: api.example\r\n\r\n";

#[test]
fn a_request_for_another_host_is_misdirected() {
    let world = World::new();
    let trust = world.trust(&[("KEY", "sk-1")]);
    let asks = world.serve_https(443, &trust.internet, NAME, &["h2", "http/1.1"]);
    let guest = world.guest(RULE);
    for protocols in [&["http/1.1"][..], &["h2"]] {
        let mut client = connected(&world, &trust, &guest, protocols);
        let (status, body) = world.ask(client.get("evil.example", "/"));
        assert_eq!(status, 421, "{body}");
        assert!(body.contains("for `api.example`"), "{body}");
        assert_eq!(world.ask(client.get(NAME, "/")).0, 200, "the next one passes");
    }
    assert_eq!(asks.all.lock().unwrap().len(), 2);
    let log = format!("{:?}", world.log(&guest.sandbox));
    assert!(log.contains("another host"), "{log}");
}

#[test]
fn a_secret_goes_to_no_server_without_a_certificate() {
    let world = World::new();
    let trust = world.trust(&[("KEY", "sk-1")]);
    let stranger = Authority::new("stranger");
    let unknown = world.serve_https(443, &stranger, NAME, &["h2", "http/1.1"]);
    let other = world.serve_https(8443, &trust.internet, "other.example", &["h2", "http/1.1"]);
    world.serve_echo(9443);
    let guest = world.guest(RULE);
    for (server, said) in [
        ("203.0.113.7:443", "certificate"),
        ("203.0.113.7:8443", "certificate"),
        ("203.0.113.7:9443", "no connection to `api.example` can be trusted"),
    ] {
        for protocols in [&["http/1.1"][..], &["h2"], &[]] {
            let stream = guest.connect(server).unwrap();
            let tls = world.secure(stream, &trust.gateway, NAME, protocols).unwrap();
            let (status, body) =
                world.ask(async move { Client::new(tls).await.get(NAME, "/").await });
            assert_eq!(status, 502, "{body}");
            assert!(body.contains(said), "{server}: {body}");
        }
    }
    assert!(unknown.all.lock().unwrap().is_empty() && other.all.lock().unwrap().is_empty());
    for (_, bytes) in world.seen.connections.lock().unwrap().iter() {
        assert!(!bytes.windows(4).any(|part| part == b"sk-1"));
    }
}

#[test]
fn plain_http_to_a_host_with_rules_is_refused_with_the_reason() {
    for policy in ["+api.example", ""] {
        let world = World::new();
        world.name(NAME, &["203.0.113.7"]);
        world.name("other.example", &["203.0.113.7"]);
        world.trust(&[("KEY", "sk-1")]);
        world.serve_echo(80);
        let guest = world.guest(&format!("{policy} {RULE}"));
        guest.look_up(NAME);
        let stream = guest.connect("203.0.113.7:80").unwrap();
        // In two pieces, as the first bytes may come.
        stream.write_all(&PLAIN[..2]).unwrap();
        stream.write_all(&PLAIN[2..]).unwrap();
        let mut got = String::new();
        while !got.ends_with("HTTPS only\n") {
            got.push_str(&String::from_utf8(stream.read().unwrap()).unwrap());
        }
        assert!(got.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{got}");
        assert!(world.seen.connections.lock().unwrap().iter().all(|(_, bytes)| bytes.is_empty()));
    }
}

#[test]
fn a_later_plain_request_to_a_host_with_rules_is_reset() {
    let world = World::new();
    world.name(NAME, &["203.0.113.7"]);
    world.name("other.example", &["203.0.113.7"]);
    world.trust(&[("KEY", "sk-1")]);
    world.serve_echo(80);
    let guest = world.guest(&format!("+api.example +other.example {RULE}"));
    guest.look_up(NAME);
    guest.look_up("other.example");
    let stream = guest.connect("203.0.113.7:80").unwrap();
    let first = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n";
    stream.write_all(first).unwrap();
    assert_eq!(stream.read().unwrap(), first);
    stream.write_all(PLAIN).unwrap();
    assert_eq!(stream.read(), Err(Ended::Reset));
    assert_eq!(world.seen.connections.lock().unwrap()[0].1, first);
}

#[test]
fn everything_else_stays_as_it_is() {
    let world = World::new();
    let trust = world.trust(&[("KEY", "sk-1")]);
    world.name("other.example", &["203.0.113.9"]);
    let guest = world.guest(RULE);
    // TLS to another host: its own certificate, and its own headers.
    let asks = world.serve_https(443, &trust.internet, "other.example", &["h2", "http/1.1"]);
    let stream = guest.connect("203.0.113.9:443").unwrap();
    let tls = world.secure(stream, &trust.internet, "other.example", &["h2"]).unwrap();
    let got = world.ask(async move {
        let mut client = Client::new(tls).await;
        client.ask("other.example", "/echo", full("x")).await.unwrap().status()
    });
    assert_eq!(got, 200);
    assert_eq!(asks.all.lock().unwrap()[0].headers["authorization"], "the guest's");
    // What is no TLS and no HTTP passes byte for byte, and nothing waits for more of it.
    world.serve_echo(7000);
    for bytes in [
        &b"P"[..].repeat(2)[..],
        b"\x16\x02\x00",
        b"GET",
        b"HELO",
        b"\x16\x03\x01\x00\x02\xff\xff",
        b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n",
        b"GET / HTTP/1.1\nHost: api.example\n\n",
        b"DELETE nothing\r\n\r\n",
        b"\0\r\n",
    ] {
        let stream = guest.connect("203.0.113.9:7000").unwrap();
        stream.write_all(bytes).unwrap();
        stream.finish();
        assert_eq!(stream.read_all().unwrap(), bytes, "{}", String::from_utf8_lossy(bytes));
    }
    for bytes in [&b"PING"[..], b"\x16\x02"] {
        let stream = guest.connect("203.0.113.9:7000").unwrap();
        stream.write_all(bytes).unwrap();
        assert_eq!(stream.read().unwrap(), bytes, "nothing waits for more");
    }
    // QUIC would carry names that nobody sees.
    world.serve_datagrams("203.0.113.9:443");
    assert_eq!(guest.exchange("203.0.113.9:443", 6000, b"x"), None);
    assert!(world.seen.datagrams.lock().unwrap().is_empty());
}

#[test]
fn what_is_not_http_gets_no_connection() {
    let world = World::new();
    let trust = world.trust(&[("KEY", "sk-1")]);
    world.serve_https(443, &trust.internet, NAME, &["imap"]);
    let guest = world.guest(RULE);
    let stream = guest.connect(SERVER).unwrap();
    let error = world.secure(stream, &trust.gateway, NAME, &["imap"]).unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    world.wait("it is told", || {
        format!("{:?}", world.log(&guest.sandbox)).contains("this is not HTTP")
    });
}
