//! First bytes, whole and in single bytes.

use std::sync::Arc;

use super::*;

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn good(asked: &DomainName) -> Decision {
    match asked.as_str() {
        "good.example" => Decision::Passes,
        "ruled.example" => Decision::Ends,
        _ => Decision::Refused,
    }
}

/// What passes of the bytes of a client that may name `good.example`, given in pieces.
fn passed(stream: &[u8], piece: usize) -> Result<Vec<u8>, Refusal> {
    let mut gate = Gate::new(Mode::Names);
    let mut passed = Vec::new();
    for bytes in stream.chunks(piece.max(1)) {
        gate.feed(bytes, good)?;
        passed.extend_from_slice(gate.passed());
        let bytes = gate.passed().len();
        gate.consume(bytes);
    }
    gate.finish()?;
    Ok(passed)
}

/// The same, whatever the pieces.
fn outcome(stream: &[u8]) -> Result<Vec<u8>, Refusal> {
    let whole = passed(stream, stream.len());
    for piece in [1, 2, 7, 64] {
        assert_eq!(passed(stream, piece), whole, "in pieces of {piece}");
    }
    whole
}

fn hello(server: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server = server.to_owned().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), server).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_client_hello_passes_with_an_allowed_name_only() {
    let mut good = hello("good.example");
    good.extend_from_slice(b"and all that follows");
    assert_eq!(outcome(&good).unwrap(), good);
    assert_eq!(outcome(&hello("evil.example")), Err(Refusal::Name(name("evil.example"))));
    // A client sends no name with an address.
    assert_eq!(outcome(&hello("203.0.113.7")), Err(Refusal::Unclear("it names no server")));
}

#[test]
fn what_begins_like_tls_and_is_none_is_refused() {
    assert!(outcome(b"\x16\x03\x01\x00\x04abcd").is_err());
    assert!(outcome(&hello("good.example")[..20]).is_err(), "the rest never comes");
}

#[test]
fn a_hello_in_many_records_is_read_as_one() {
    let hello = hello("good.example");
    let (header, body) = hello.split_at(5);
    let mut cut = Vec::new();
    for part in body.chunks(50) {
        cut.extend_from_slice(&header[..3]);
        cut.extend_from_slice(&u16::try_from(part.len()).unwrap().to_be_bytes());
        cut.extend_from_slice(part);
    }
    assert_eq!(outcome(&cut).unwrap(), cut);
}

#[test]
fn every_request_of_a_connection_is_checked() {
    let good = "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n";
    let post = "POST /x HTTP/1.1\r\nhost: GOOD.example:8080\r\nContent-Length: 5\r\n\r\nHost:";
    let chunked = "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n\
                   a;x=y\r\n0123456789\r\n1\r\n\r\r\n0\r\nTrailer: x\r\n\r\n";
    let absolute = "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n";
    let all = [good, post, chunked, absolute, good].concat();
    assert_eq!(outcome(all.as_bytes()).unwrap(), all.as_bytes());
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    for first in [good, post, chunked, absolute] {
        let stream = [first, evil].concat();
        let refused = outcome(stream.as_bytes());
        assert_eq!(refused, Err(Refusal::Name(name("evil.example"))), "after {first}");
    }
}

#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused() {
    let host = "Host: good.example\r\n";
    for request in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\n{host}Host: evil.example\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}{host}\r\n"),
        format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n"),
        format!("GET http://good.example@evil.example/ HTTP/1.1\r\n{host}\r\n"),
        format!("CONNECT evil.example:443 HTTP/1.1\r\n{host}\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde"),
        format!("POST / HTTP/1.1\r\n{host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Content-Length: +3\r\n\r\nabc"),
        format!("POST / HTTP/1.1\r\n{host}Content-Length: 0x3\r\n\r\nabc"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: gzip, chunked\r\n\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n5x\r\nabcde\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n-1\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n5\nabcde\r\n"),
        "GET / HTTP/1.1\nHost: good.example\n\n".to_owned(),
        format!("GET / HTTP/1.1\r\n{host} folded: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nX: a\nHost: evil.example\r\n{host}\r\n"),
        format!("GET /\x01 HTTP/1.1\r\n{host}\r\n"),
        format!("get / http/1.1\r\n{host}\r\n"),
        "GET /\r\n\r\n".to_owned(),
        "\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\n{host}Upgrade: x\r\nContent-Length: 1\r\n\r\nx"),
        "GET / HTTP/1.1\r\nHost: good.example:80@evil\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: 203.0.113.7\r\n\r\n".to_owned(),
    ] {
        assert!(outcome(request.as_bytes()).is_err(), "{request}");
    }
}

#[test]
fn other_protocols_pass_by_their_address() {
    for stream in [
        b"SSH-2.0-OpenSSH_9.2\r\nmore".as_slice(),
        b"EHLO guest\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"AMQP\0\0\x09\x01",
    ] {
        assert_eq!(outcome(stream).unwrap(), stream);
    }
    assert!(outcome(b"half a line").is_err(), "it may become a request");
    assert!(outcome(&[b'x'; HELD_BYTES_MAX]).is_err(), "it is too long for a line");
}

const UPGRADE: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// What passes after the server has answered.
fn after_answer(answer: &[u8], more: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut gate = Gate::new(Mode::Names);
    gate.feed(UPGRADE, good)?;
    assert_eq!(gate.passed(), UPGRADE);
    gate.consume(UPGRADE.len());
    gate.feed(more, good)?;
    assert!(gate.passed().is_empty(), "the server has not answered");
    for byte in answer {
        gate.answer(&[*byte], good)?;
    }
    Ok(gate.passed().to_vec())
}

#[test]
fn another_protocol_begins_when_the_server_says_so() {
    let frames = b"\x81\x85\x01\x02\x03\x04hello";
    assert_eq!(after_answer(b"HTTP/1.1 101 Switching", frames).unwrap(), frames);
    let evil = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    let refused = after_answer(b"HTTP/1.1 200 OK", evil);
    assert_eq!(refused, Err(Refusal::Name(name("evil.example"))));
    assert!(after_answer(b"HTTP/1.1 200 OK", frames).is_err());
    assert_eq!(after_answer(b"HTTP/1.1 20", frames).unwrap(), b"");
}

#[test]
fn only_the_first_request_may_upgrade() {
    let second = [b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n".as_slice(), UPGRADE].concat();
    assert!(outcome(&second).is_err(), "whose answer would be looked at?");
}

/// What passes where only rules matter, and what the gateway ends.
fn ruled(stream: &[u8]) -> (Vec<u8>, Option<Ended>) {
    let with = |piece: usize| {
        let mut gate = Gate::new(Mode::Rules);
        let (mut passed, mut ended) = (Vec::new(), None);
        for bytes in stream.chunks(piece) {
            gate.feed(bytes, good).unwrap();
            ended = ended.or_else(|| gate.take_ended());
            passed.extend_from_slice(gate.passed());
            gate.consume(gate.passed().len());
        }
        gate.finish().unwrap();
        passed.extend_from_slice(gate.passed());
        (passed, ended)
    };
    let whole = with(stream.len());
    for piece in [1, 2, 7, 64] {
        assert_eq!(with(piece), whole, "in pieces of {piece}");
    }
    whole
}

#[test]
fn hosts_with_rules_are_found_and_nothing_is_refused_for_them() {
    let ended = |host: &str, tls| Some(Ended { name: name(host), tls });
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    for (stream, expected) in [
        (hello("ruled.example"), ended("ruled.example", true)),
        (hello("evil.example"), None),
        (get("ruled.example:80"), ended("ruled.example", false)),
        (get("evil.example"), None),
        ([get("evil.example"), get("ruled.example")].concat(), None),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), None),
        (b"\x16\x03nonsense".to_vec(), None),
        (b"SSH-2.0-x".to_vec(), None),
        (vec![b'x'; 2 * HELD_BYTES_MAX], None),
        ([b"GET /".as_slice(), &[b'x'; 2 * HELD_BYTES_MAX]].concat(), None),
    ] {
        assert_eq!(ruled(&stream), (stream, expected));
    }
    let hello = hello("ruled.example");
    assert_eq!(passed(&hello, 9), Ok(hello), "where names decide, it passes to the proxy");
    let later = [get("good.example"), get("ruled.example")].concat();
    assert_eq!(outcome(&later), Err(Refusal::Plain(name("ruled.example"))));
}
