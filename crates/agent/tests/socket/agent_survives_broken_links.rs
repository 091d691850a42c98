//! Goal: neither side is harmed by what the other one, or a branch, does to the stream. Method:
//! the real agent with a hand-written host, and the real client with a hand-written agent.

use std::time::{Duration, Instant};

use crate::raw::{Raw, client_of_raw_agent, run, welcome};
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    ExecEvent, ExecRequest, GuestAgent, GuestError, Identity, ProcessRequest, ProcessTable,
};
use forkd_protocol::{DELIMITER, Reply, Request, encode_frame};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

fn exec(script: &str) -> Request {
    run(&["sh", "-c", script], None)
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
async fn a_renewal_is_with_the_guest_before_it_has_answered_the_greeting() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let identity = Identity {
        instance_id: "sb-1".to_owned(),
        hostname: "sb-1".to_owned(),
        machine_id: "0".repeat(32),
    };
    let renewing = agent.begin_renewal(identity, SOON).await.unwrap();
    let (hello, Request::Hello { nonce, .. }) = raw.request().await else { panic!() };
    let (renew, Request::Renew { instance_id, .. }) = raw.request().await else { panic!() };
    raw.answer(hello, &welcome(nonce)).await;
    let renewed = Reply::Renewed { instance_id, clock_step_ns: 7, hooks: Vec::new() };
    raw.answer(renew, &renewed).await;
    assert_eq!(renewing.confirmed().await.unwrap().clock_step_ns, 7);
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
async fn programs_of_another_epoch_are_neither_held_back_nor_told_the_end_of_their_input() {
    let local = LocalAgent::start();
    let (flood, whole) = (local.path("flood"), local.path("whole"));
    let mut source = Raw::new(local.stream().await);
    source.hello(1).await;
    source.ask(2, &exec(&format!("head -c 9000000 /dev/zero; touch {flood}"))).await;
    let mut reads_input = exec(&format!("cat > /dev/null; touch {whole}"));
    if let Request::Exec { stdin_follows, .. } = &mut reads_input {
        *stdin_follows = true;
    }
    source.ask(3, &reads_input).await;
    while !matches!(source.reply().await, (3, Reply::Credit { .. })) {}
    source.ask(3, &Request::Input { data: b"half of it".to_vec(), eof: false }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!std::fs::exists(&flood).unwrap(), "its credit is over: it is held back");
    drop(source);

    let mut child = Raw::new(local.stream().await);
    child.hello(100).await;
    let start = Instant::now();
    while !std::fs::exists(&flood).unwrap() {
        assert!(start.elapsed() < SOON, "the program of the old epoch does not go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!std::fs::exists(&whole).unwrap(), "half of the input was taken for the whole");
    child.ask(101, &Request::Ping {}).await;
    let (_, Reply::Pong { requests_running, .. }) = child.reply().await else { panic!() };
    assert_eq!(requests_running, 1, "the program that waits for input is there");
}

#[tokio::test]
async fn a_program_that_ended_waits_for_its_host_without_using_the_processor() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    let mark = local.path("mark");
    let mut request = exec(&format!("head -c 50000 /dev/zero; touch {mark}"));
    if let Request::Exec { output_credit, .. } = &mut request {
        *output_credit = 1000;
    }
    raw.ask(2, &request).await;
    let start = Instant::now();
    while !std::fs::exists(&mark).unwrap() {
        assert!(start.elapsed() < SOON, "the program does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    local.idle().await;
    raw.ask(2, &Request::Credit { bytes: 1 << 20 }).await;
    while !matches!(raw.reply().await, (2, Reply::Exited { exit_code: 0, .. })) {}
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
async fn an_agent_that_would_ignore_a_user_is_not_asked_to_run_the_program() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let agent = GuestAgent::connect(ours).unwrap();
    let mut raw = Raw::new(theirs);
    let older = async {
        let (id, Request::Hello { nonce, .. }) = raw.request().await else { panic!() };
        let mut reply = welcome(nonce);
        let Reply::Welcome { users, .. } = &mut reply else { panic!() };
        *users = false;
        raw.answer(id, &reply).await;
    };
    let (facts, ()) = tokio::join!(agent.hello(SOON), older);
    facts.unwrap();
    let user = Some("nobody".to_owned());
    let request = ExecRequest { user: user.clone(), ..ExecRequest::new(["id"]) };
    let refused = agent.exec_stream(request).err().unwrap();
    assert!(refused.to_string().contains("build the template again"), "{refused}");
    let request = ProcessRequest { user, ..ProcessRequest::new(["id"]) };
    let refused = ProcessTable::default().start(&agent, request).await.unwrap_err();
    assert!(refused.to_string().contains("build the template again"), "{refused}");
    // Nothing has been sent: the next is what is asked for without a user.
    let _running = agent.exec_stream(ExecRequest::new(["true"])).unwrap();
    let (_, Request::Exec { args, user, .. }) = raw.request().await else { panic!() };
    assert_eq!((args, user), (vec!["true".to_owned()], None));
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
