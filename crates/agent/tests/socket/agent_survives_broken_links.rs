//! Goal: neither side is harmed by what the other one, or a branch, does to the stream. Method:
//! the real agent with a hand-written host, and the real client with a hand-written agent.

use std::time::{Duration, Instant};

use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{ExecEvent, ExecRequest, GuestAgent, GuestError};
use forkd_protocol::{
    DELIMITER, FrameDecoder, Reply, Request, decode_reply, decode_request, encode_frame,
    encode_reply, encode_request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// One side of a conversation, byte by byte.
struct Raw {
    stream: UnixStream,
    decoder: FrameDecoder,
    arrived: std::collections::VecDeque<(u64, Vec<u8>)>,
}

impl Raw {
    fn new(stream: UnixStream) -> Self {
        let decoder = FrameDecoder::new();
        Self { stream, decoder, arrived: std::collections::VecDeque::new() }
    }

    async fn frame(&mut self) -> (u64, Vec<u8>) {
        loop {
            if let Some(frame) = self.arrived.pop_front() {
                return frame;
            }
            let mut buffer = vec![0; 65536];
            let read = self.stream.read(&mut buffer);
            let count = tokio::time::timeout(SOON, read).await.unwrap().unwrap();
            assert!(count > 0, "the other side closed");
            let arrived = &mut self.arrived;
            self.decoder.feed(&buffer[..count], |event| {
                if let Ok(frame) = event {
                    arrived.push_back((frame.request_id, frame.message.to_vec()));
                }
            });
        }
    }

    async fn reply(&mut self) -> (u64, Reply) {
        let (id, message) = self.frame().await;
        (id, decode_reply(&message).unwrap())
    }

    async fn request(&mut self) -> (u64, Request) {
        let (id, message) = self.frame().await;
        (id, decode_request(&message).unwrap())
    }

    async fn ask(&mut self, id: u64, request: &Request) {
        let mut wire = Vec::new();
        encode_request(id, request, &mut wire).unwrap();
        self.stream.write_all(&wire).await.unwrap();
    }

    async fn answer(&mut self, id: u64, reply: &Reply) {
        let mut wire = Vec::new();
        encode_reply(id, reply, &mut wire).unwrap();
        self.stream.write_all(&wire).await.unwrap();
    }

    async fn hello(&mut self, id: u64) {
        self.stream.write_all(&[DELIMITER]).await.unwrap();
        self.ask(id, &Request::Hello { protocol_min: 1, protocol_max: 9, nonce: id }).await;
        loop {
            if let (answered, Reply::Welcome { nonce, .. }) = self.reply().await {
                assert_eq!((answered, nonce), (id, id));
                return;
            }
        }
    }

    /// As an agent: takes a hello and welcomes.
    async fn welcome(&mut self) {
        let (id, Request::Hello { nonce, .. }) = self.request().await else { panic!() };
        self.answer(id, &welcome(nonce)).await;
    }
}

fn welcome(nonce: u64) -> Reply {
    Reply::Welcome {
        protocol: 1,
        nonce,
        agent_version: "0".to_owned(),
        kernel_release: "6".to_owned(),
        boot_id: "b".to_owned(),
        has_root_disk: true,
        python: false,
        is_init: true,
        epoch: 1,
    }
}

fn exec(script: &str) -> Request {
    Request::Exec {
        args: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        env: Vec::new(),
        cwd: None,
        stdin_follows: false,
        timeout_ms: None,
        output_credit: 1 << 20,
    }
}

/// A client that has greeted, and the raw end on which to play its agent.
async fn client_of_raw_agent() -> (GuestAgent, Raw) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let agent = GuestAgent::connect(ours).unwrap();
    let mut raw = Raw::new(theirs);
    let (facts, ()) = tokio::join!(agent.hello(SOON), raw.welcome());
    facts.unwrap();
    (agent, raw)
}

#[tokio::test]
async fn the_agent_answers_garbage_with_errors_and_then_serves() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.stream.write_all(b"\x07half a frame of another daemon").await.unwrap();
    raw.hello(1).await;
    raw.stream.write_all(b"garbage\0").await.unwrap();
    let (id, Reply::Error { code, .. }) = raw.reply().await else { panic!() };
    assert_eq!((id, code.as_str()), (0, "bad_frame"));
    for _ in 0..20 {
        raw.stream.write_all(&[1; 65536]).await.unwrap();
    }
    let (0, Reply::Error { .. }) = raw.reply().await else { panic!() };
    let mut wire = vec![DELIMITER];
    encode_frame(7, b"\x81\xA8teleport\x80", &mut wire).unwrap();
    encode_frame(8, b"\xC1", &mut wire).unwrap();
    raw.stream.write_all(&wire).await.unwrap();
    let (7, Reply::Error { code, .. }) = raw.reply().await else { panic!() };
    assert_eq!(code, "unsupported");
    let (8, Reply::Error { code, .. }) = raw.reply().await else { panic!() };
    assert_eq!(code, "bad_message");
    raw.ask(9, &Request::Ping {}).await;
    assert!(matches!(raw.reply().await, (9, Reply::Pong { frames_rejected: 3, .. })));
}

#[tokio::test]
async fn no_common_version_is_an_error_and_not_a_guess() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.ask(5, &Request::Hello { protocol_min: 40, protocol_max: 50, nonce: 1 }).await;
    let (5, Reply::Error { code, .. }) = raw.reply().await else { panic!() };
    assert_eq!(code, "unsupported");
}

#[tokio::test]
async fn requests_before_hello_are_refused() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.ask(1, &exec("true")).await;
    assert!(matches!(raw.reply().await, (1, Reply::Error { .. })));
}

#[tokio::test]
async fn a_new_hello_discards_old_output_while_the_process_goes_on() {
    let local = LocalAgent::start();
    let mark = local.path("mark");
    let mut source = Raw::new(local.stream().await);
    source.hello(1).await;
    let script = format!("while sleep 0.01; do echo old; done & sleep 1; touch {mark}; sleep 1");
    source.ask(2, &exec(&script)).await;
    while !matches!(source.reply().await, (2, Reply::Stdout { .. })) {}
    drop(source);

    let mut child = Raw::new(local.stream().await);
    child.hello(100).await;
    // The same id again: nothing of the old request may show up under it.
    child.ask(2, &exec("sleep 0.5; echo new")).await;
    let mut output = Vec::new();
    loop {
        match child.reply().await {
            (2, Reply::Stdout { data }) => output.extend(data),
            (2, Reply::Exited { exit_code: 0, .. }) => break,
            (2, Reply::Started { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(output, b"new\n");
    let start = Instant::now();
    while !std::fs::exists(&mark).unwrap() {
        assert!(start.elapsed() < SOON, "the old process was ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_host_that_reads_nothing_delays_but_loses_nothing() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    for id in 2..10 {
        raw.ask(id, &exec("head -c 400000 /dev/zero")).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    raw.ask(50, &Request::Ping {}).await;
    let mut bytes = 0;
    let mut ended = 0;
    let mut pongs = 0;
    while ended < 8 || pongs < 1 {
        match raw.reply().await.1 {
            Reply::Stdout { data } => bytes += data.len(),
            Reply::Exited { exit_code: 0, .. } => ended += 1,
            Reply::Pong { .. } => pongs += 1,
            Reply::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, 8 * 400_000);
}

#[tokio::test]
async fn input_beyond_the_credit_is_refused() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    let mut request = exec("sleep 5");
    if let Request::Exec { stdin_follows, .. } = &mut request {
        *stdin_follows = true;
    }
    raw.ask(2, &request).await;
    for _ in 0..10 {
        raw.ask(2, &Request::Input { data: vec![0; 60_000], eof: false }).await;
    }
    loop {
        match raw.reply().await {
            (2, Reply::Error { code, .. }) => {
                assert_eq!(code, "input_overrun");
                break;
            }
            (2, Reply::Started { .. } | Reply::Credit { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_closed_connection_fails_every_request_under_way() {
    let (agent, raw) = client_of_raw_agent().await;
    let close = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(raw);
    };
    let exec = agent.exec(ExecRequest::new(["sleep", "9"]));
    let (output, pong, ()) = tokio::join!(exec, agent.ping(SOON), close);
    assert!(matches!(output.unwrap_err(), GuestError::Closed { .. }));
    assert!(matches!(pong.unwrap_err(), GuestError::Closed { .. }));
    assert!(matches!(agent.ping(SOON).await.unwrap_err(), GuestError::Closed { .. }));
}

#[tokio::test]
async fn a_silent_agent_costs_no_more_than_the_deadline() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let agent = GuestAgent::connect(ours).unwrap();
    let within = Duration::from_millis(100);
    let error = agent.hello(within).await.unwrap_err();
    assert_eq!(error, GuestError::Timeout { what: "hello", deadline: within });
}

#[tokio::test]
async fn requests_do_not_pile_up_for_a_guest_that_does_not_read() {
    let (agent, _raw) = client_of_raw_agent().await;
    let mut refused = 0;
    for _ in 0..100 {
        let request = ExecRequest {
            stdin: Vec::new(),
            timeout: Duration::ZERO,
            ..ExecRequest::new(["x".repeat(200_000)])
        };
        let stream = agent.exec_stream(request);
        refused += usize::from(matches!(stream, Err(GuestError::NotReading { .. })));
    }
    assert!((50..100).contains(&refused), "{refused} of 100 were refused");
}

#[tokio::test]
async fn replies_of_another_connection_are_not_taken_for_ours() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let agent = GuestAgent::connect(ours).unwrap();
    let mut raw = Raw::new(theirs);
    let agent_side = async {
        // The rest of a frame to the source's daemon, and a whole one.
        raw.stream.write_all(b"\x03rest of a frame\0").await.unwrap();
        let (id, Request::Hello { nonce, .. }) = raw.request().await else { panic!() };
        raw.answer(id, &welcome(nonce ^ 1)).await;
        raw.answer(
            id,
            &Reply::Pong { uptime_ns: 0, epoch: 0, requests_running: 0, frames_rejected: 0 },
        )
        .await;
        raw.answer(id, &welcome(nonce)).await;
    };
    let (facts, ()) = tokio::join!(agent.hello(SOON), agent_side);
    facts.unwrap();
    let counters = agent.counters();
    assert_eq!((counters.frames_rejected, counters.replies_unrouted), (1, 2));
}

#[tokio::test]
async fn an_agent_that_ignores_its_credit_loses_the_request_only() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let mut stream = agent.exec_stream(ExecRequest::new(["x"])).unwrap();
    let (id, Request::Exec { .. }) = raw.request().await else { panic!() };
    for _ in 0..100 {
        raw.answer(id, &Reply::Stdout { data: vec![0; 60_000] }).await;
    }
    let mut received = 0;
    let error = loop {
        match stream.next().await {
            Ok(Some(ExecEvent::Stdout(data))) => received += data.len(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, GuestError::Protocol { .. }), "{error}");
    assert!(received < 6_000_000);
    let pong = async {
        loop {
            if let (id, Request::Ping {}) = raw.request().await {
                let pong =
                    Reply::Pong { uptime_ns: 1, epoch: 1, requests_running: 0, frames_rejected: 0 };
                raw.answer(id, &pong).await;
                return;
            }
        }
    };
    let (pulse, ()) = tokio::join!(agent.ping(SOON), pong);
    pulse.unwrap();
    assert!(agent.counters().replies_unrouted > 0);
}

#[tokio::test]
async fn an_unexpected_reply_is_an_error() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let agent_side = async {
        let (id, Request::Ping {}) = raw.request().await else { panic!() };
        raw.answer(id, &Reply::Written { bytes: 1 }).await;
    };
    let (pulse, ()) = tokio::join!(agent.ping(SOON), agent_side);
    assert!(matches!(pulse.unwrap_err(), GuestError::Protocol { .. }));
}

#[tokio::test]
async fn quiesce_holds_writes_back_until_the_guard_is_dropped() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let guard = agent.quiesce(SOON).await.unwrap();
    let other = agent.clone();
    let ping = tokio::spawn(async move { other.ping(SOON).await });
    let silence = tokio::time::timeout(Duration::from_millis(200), raw.frame()).await;
    assert!(silence.is_err(), "a frame was written while quiesced: {silence:?}");
    drop(guard);
    let (id, Request::Ping {}) = raw.request().await else { panic!() };
    let pong = Reply::Pong { uptime_ns: 1, epoch: 1, requests_running: 0, frames_rejected: 0 };
    raw.answer(id, &pong).await;
    ping.await.unwrap().unwrap();
}

#[tokio::test]
async fn quiesce_waits_for_the_peer_to_read_and_gives_up_at_the_deadline() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let other = agent.clone();
    let ping = tokio::spawn(async move { other.ping(Duration::from_secs(1)).await });
    // Wait until the ping is in the socket, without reading it.
    raw.stream.readable().await.unwrap();
    let within = Duration::from_millis(100);
    let error = agent.quiesce(within).await.unwrap_err();
    assert_eq!(error, GuestError::Timeout { what: "quiesce", deadline: within });
    let reading = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        raw.frame().await
    };
    let start = Instant::now();
    let (guard, _) = tokio::join!(agent.quiesce(SOON), reading);
    drop(guard.unwrap());
    assert!(start.elapsed() >= Duration::from_millis(50));
    drop(ping.await.unwrap());
}
