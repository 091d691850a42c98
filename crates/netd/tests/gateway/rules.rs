//! Hosts with header rules: what reaches the server, and what comes back.

use forkd_types::network::NetworkLeave;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame};
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderMap;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::guest::Guest;
use crate::secure::{Body, Tls, Trust, full};
use crate::world::{World, parse};

pub(crate) const SERVER: &str = "203.0.113.7:443";
const NAME: &str = "api.example";
const RULE: &str = "@api.example|authorization|Bearer_${secrets.KEY}";
const H1: &[&str] = &["http/1.1"];
const H2: &[&str] = &["h2", "http/1.1"];

/// A client of either version.
pub(crate) enum Client {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Client {
    pub(crate) async fn new(tls: Tls) -> Self {
        let is_two = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let io = TokioIo::new(tls);
        if is_two {
            let made = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(made.1);
            Self::Two(made.0)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::One(sender)
        }
    }

    /// Asks for a path of a host.
    pub(crate) async fn ask(
        &mut self,
        host: &str,
        path: &str,
        body: Body,
    ) -> hyper::Result<Response<hyper::body::Incoming>> {
        let request = Request::builder().method("POST");
        match self {
            Self::One(sender) => {
                let request = request.uri(path).header("host", host);
                let request = request.header("te", "trailers").header("connection", "te");
                let request = request.header("authorization", "the guest's");
                sender.ready().await?;
                sender.send_request(request.body(body).unwrap()).await
            }
            Self::Two(sender) => {
                let request = request.uri(format!("https://{host}{path}")).version(Version::HTTP_2);
                let request = request.header("authorization", "the guest's");
                sender.ready().await?;
                sender.send_request(request.body(body).unwrap()).await
            }
        }
    }

    /// The status and the body of the answer to a small request.
    pub(crate) async fn get(&mut self, host: &str, path: &str) -> (u16, String) {
        let response = self.ask(host, path, full("")).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

/// A guest that has connected to the host with rules.
pub(crate) fn connected(world: &World, trust: &Trust, guest: &Guest, protocols: &[&str]) -> Client {
    let stream = guest.connect(SERVER).unwrap();
    let tls = world.secure(stream, &trust.gateway, NAME, protocols).unwrap();
    world.ask(Client::new(tls))
}

fn world() -> (World, Trust) {
    let world = World::new();
    world.name(NAME, &["203.0.113.7"]);
    let trust = world.trust(&[("KEY", "sk-1")]);
    (world, trust)
}

#[test]
fn headers_are_set_in_every_request_of_both_versions() {
    for (list, protocols, version) in [
        ("+api.example:443", H1, Version::HTTP_11),
        ("+api.example:443", H2, Version::HTTP_2),
        ("", H1, Version::HTTP_11),
        ("", H2, Version::HTTP_2),
        ("+203.0.113.0/24", &[][..], Version::HTTP_11),
    ] {
        let (world, trust) = world();
        let asks = world.serve_https(443, &trust.internet, NAME, H2);
        let guest = world.guest(&format!("{list} {RULE}"));
        guest.look_up(NAME);
        let mut client = connected(&world, &trust, &guest, protocols);
        for _ in 0..3 {
            let answer = world.ask(client.get(NAME, "/"));
            assert_eq!(answer, (200, "page".to_owned()));
        }
        let seen = asks.all.lock().unwrap().clone();
        assert_eq!(seen.len(), 3);
        for asked in seen {
            assert_eq!(asked.version, version);
            let all: Vec<_> = asked.headers.get_all("authorization").iter().collect();
            assert_eq!(all, ["Bearer sk-1"], "the guest's own is replaced");
        }
        drop(client);
        let flow = || world.log(&guest.sandbox).into_iter().find(|line| line["protocol"] == "tcp");
        world.wait("the flow has its line", || flow().is_some());
        let line = flow().unwrap();
        let expected = (&"rules: api.example".into(), &"api.example".into());
        assert_eq!((&line["reason"], &line["name"]), expected, "{line}");
        let log = format!("{:?}", world.log(&guest.sandbox));
        assert!(!log.contains("sk-1"), "{log}");
    }
}

#[test]
fn large_bodies_pass_both_ways_and_a_reader_that_waits_is_felt() {
    for protocols in [H1, H2] {
        let (world, trust) = world();
        world.serve_https(443, &trust.internet, NAME, H2);
        let guest = world.guest(&format!("+api.example {RULE}"));
        guest.look_up(NAME);
        let mut client = connected(&world, &trust, &guest, protocols);
        let sent: Vec<u8> =
            (0..8u32 << 20).map(|at| (at * 31 + at / 251).to_le_bytes()[0]).collect();
        let body = sent.clone();
        let got = world.ask(async move {
            let response = client.ask(NAME, "/echo", full(body)).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        });
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
        // A server that nobody reads stops: it does not fill the gateway.
        let mut client = connected(&world, &trust, &guest, protocols);
        let (sender, frames) = tokio::sync::mpsc::channel::<Frame<Bytes>>(1);
        let body = channel_body(frames);
        let accepted = world.ask(async move {
            let response = client.ask(NAME, "/echo", body).await.unwrap();
            let mut accepted = 0;
            let part = Bytes::from(vec![7; 65_536]);
            while let Ok(Ok(())) = tokio::time::timeout(
                std::time::Duration::from_secs(2),
                sender.send(Frame::data(part.clone())),
            )
            .await
            {
                accepted += part.len();
                assert!(accepted < 64 << 20, "the gateway takes all");
            }
            drop(sender);
            let mut got = 0;
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                got += frame.unwrap().into_data().unwrap_or_default().len();
            }
            (accepted, got)
        });
        assert_eq!(accepted.0, accepted.1);
    }
}

fn channel_body(mut frames: tokio::sync::mpsc::Receiver<Frame<Bytes>>) -> Body {
    let stream = futures_util::stream::poll_fn(move |context| {
        frames.poll_recv(context).map(|frame| frame.map(Ok::<_, hyper::Error>))
    });
    http_body_util::BodyExt::boxed(http_body_util::StreamBody::new(stream))
}

#[test]
fn what_a_server_sends_comes_at_once_and_trailers_pass() {
    for protocols in [H1, H2] {
        let (world, trust) = world();
        let asks = world.serve_https(443, &trust.internet, NAME, H2);
        let guest = world.guest(&format!("+api.example {RULE}"));
        guest.look_up(NAME);
        let mut client = connected(&world, &trust, &guest, protocols);
        let (first, rest) = world.ask(async move {
            let response = client.ask(NAME, "/events", full("")).await.unwrap();
            let mut body = response.into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            // The server waits for this.
            asks.go_on.notify_one();
            (first, body.collect().await.unwrap())
        });
        assert_eq!(first, "data: 1\n\n");
        assert_eq!(rest.trailers().unwrap()["x-end"], "yes");
        assert_eq!(rest.to_bytes(), "data: 2\n\n");
        // And those of a request.
        let mut client = connected(&world, &trust, &guest, H2);
        let (sender, frames) = tokio::sync::mpsc::channel(2);
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "3".parse().unwrap())]);
        let body = channel_body(frames);
        let answer = world.ask(async move {
            sender.send(Frame::data(Bytes::from("abc"))).await.unwrap();
            sender.send(Frame::trailers(trailers)).await.unwrap();
            drop(sender);
            let response = client.ask(NAME, "/sum", body).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        });
        assert_eq!(answer, "3 3");
    }
}

#[test]
fn a_connection_may_change_its_protocol() {
    let (world, trust) = world();
    let asks = world.serve_https(443, &trust.internet, NAME, H2);
    let guest = world.guest(&format!("+api.example {RULE}"));
    guest.look_up(NAME);
    let Client::One(mut sender) = connected(&world, &trust, &guest, H1) else { panic!() };
    world.ask(async move {
        let request = Request::builder().uri("/socket").header("host", NAME);
        let request = request.header("connection", "Upgrade").header("upgrade", "websocket");
        let mut response = sender.send_request(request.body(full("")).unwrap()).await.unwrap();
        assert_eq!(response.status(), 101);
        let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
        for word in ["abc", "hello"] {
            stream.write_all(word.as_bytes()).await.unwrap();
            let mut got = vec![0; word.len()];
            stream.read_exact(&mut got).await.unwrap();
            got.reverse();
            assert_eq!(got, word.as_bytes());
        }
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the server's end comes through");
    });
    assert_eq!(asks.all.lock().unwrap()[0].headers["authorization"], "Bearer sk-1");
}

#[test]
fn secrets_and_rules_are_those_of_the_request() {
    let (world, trust) = world();
    let asks = world.serve_https(443, &trust.internet, NAME, H2);
    let guest = world.guest(&format!("+api.example {RULE}"));
    guest.look_up(NAME);
    let mut client = connected(&world, &trust, &guest, H2);
    let last = || asks.all.lock().unwrap().last().unwrap().headers["authorization"].clone();
    let set = |policy: &str| {
        let policy = parse(policy);
        let set = world.client.set_policy(guest.sandbox.clone(), policy, NetworkLeave::Public);
        world.ask(set).unwrap();
    };
    world.ask(client.get(NAME, "/"));
    assert_eq!(last(), "Bearer sk-1");
    world.set_secrets(&trust, &[("KEY", "sk-2"), ("OTHER", "x")]);
    world.ask(client.get(NAME, "/"));
    assert_eq!(last(), "Bearer sk-2", "on a connection that lives");
    set("+api.example @api.example|authorization|Token_${secrets.OTHER}");
    world.ask(client.get(NAME, "/"));
    assert_eq!(last(), "Token x");
    world.set_secrets(&trust, &[]);
    let (status, body) = world.ask(client.get(NAME, "/"));
    assert_eq!(status, 502);
    assert!(body.contains("need the secret `OTHER`"), "{body}");
    assert_eq!(asks.all.lock().unwrap().len(), 3, "the server was not asked");
    let log = world.log(&guest.sandbox);
    assert!(format!("{log:?}").contains("`OTHER`, which is not set"), "{log:?}");
    world.set_secrets_of(&trust, "somebody".parse().unwrap(), &[("OTHER", "theirs")]);
    assert_eq!(world.ask(client.get(NAME, "/")).0, 502, "it is another owner's");
    // Without rules the connection is the server's own, so this one ends.
    set("+api.example");
    assert!(world.ask(client.ask(NAME, "/", full(""))).is_err());
    let stream = guest.connect(SERVER).unwrap();
    let tls = world.secure(stream, &trust.internet, NAME, H1).unwrap();
    let answer = world.ask(async move { Client::new(tls).await.get(NAME, "/").await });
    assert_eq!(answer.0, 200);
    assert_eq!(last(), "the guest's");
}
