//! Goal: a program goes on with whoever comes next: a branch's child, a later daemon. Each byte of
//! its output is given once from the offset on that is told, input and signals arrive, its end is
//! not missed; and nobody's absence holds it up or makes the agent grow. Method: two conversations
//! with the real agent, one after the other, and a raw agent that breaks the rules. What would
//! break it: bytes that are given twice or never, an end that is told to nobody, a follower who is
//! told before the offset.

use std::time::{Duration, Instant};

use crate::raw::{Raw, client_of_raw_agent, run};
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    ExecExit, GuestAgent, InputPiece, OutputEvent, ProcessEnd, ProcessError, ProcessInput,
    ProcessRequest, ProcessTable, ProcessView, TerminalSize,
};
use forkd_protocol::{KEPT_MAX, Keep, REQUESTS_MAX, Reply, Request};

fn shell(script: &str) -> ProcessRequest {
    ProcessRequest::new(["sh", "-c", script])
}

fn exited(exit_code: i32, signal: Option<i32>) -> ProcessEnd {
    ProcessEnd::Exited(ExecExit { exit_code, signal, timed_out: false })
}

/// All output from the oldest kept byte on, and the end.
async fn rest(table: &ProcessTable, view: &ProcessView) -> (Vec<u8>, ProcessEnd) {
    let mut reader = table.read(&view.id, None).unwrap();
    let mut output = Vec::new();
    loop {
        match tokio::time::timeout(SOON, reader.next()).await.unwrap().unwrap() {
            OutputEvent::Data { data, .. } => output.extend(data),
            OutputEvent::Lost { bytes, .. } => panic!("{bytes} bytes are lost"),
            OutputEvent::Ended(end) => return (output, end),
        }
    }
}

async fn exists(path: &str) {
    let start = Instant::now();
    while !std::fs::exists(path).unwrap() {
        assert!(start.elapsed() < SOON, "{path} does not appear");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Goes as a daemon does whose guests live on.
fn leave(agent: GuestAgent, table: ProcessTable) {
    agent.leave();
    table.end_all("the test goes on");
    drop(agent);
}

/// Another conversation, with a table that knows of no program, as in a child.
async fn next_host(local: &LocalAgent) -> (GuestAgent, ProcessTable) {
    let (agent, table) = (local.greet().await, ProcessTable::default());
    table.follow_kept(&agent).await.unwrap();
    (agent, table)
}

fn one(table: &ProcessTable) -> ProcessView {
    let [view] = &table.list()[..] else { panic!("{:?}", table.list()) };
    view.clone()
}

#[tokio::test]
async fn the_next_host_goes_on_with_a_program_where_the_last_one_stopped() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let (go, written) = (local.path("go"), local.path("written"));
    let script = format!(
        "echo one; until [ -e {go} ]; do sleep 0.01; done; echo two; echo three >&2; \
         touch {written}; read line; echo $line; exit 3"
    );
    let request = ProcessRequest {
        input: ProcessInput::Open,
        note: Some("as it was".to_owned()),
        ..shell(&script)
    };
    let before = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&before.id, None).unwrap();
    let first = tokio::time::timeout(SOON, reader.next()).await.unwrap().unwrap();
    assert!(matches!(first, OutputEvent::Data { to: 4, .. }), "{first:?}");
    drop(reader);
    leave(agent, table);

    // A conversation that asks for nothing: nobody follows the program now.
    drop(local.greet().await);
    std::fs::write(&go, "").unwrap();
    exists(&written).await;

    let (_agent, table) = next_host(&local).await;
    let after = one(&table);
    assert_eq!((&after.id, after.pid), (&before.id, before.pid));
    assert_eq!((&after.args, &after.note), (&before.args, &before.note));
    assert_eq!((after.output_from, &after.end, after.inherited), (4, &None, false));
    let piece = InputPiece { data: b"four\n".to_vec(), eof: false };
    table.give_input(&after.id, piece).await.unwrap();
    let (output, end) = rest(&table, &after).await;
    assert_eq!(
        (String::from_utf8(output).unwrap().as_str(), end),
        ("two\nthree\nfour\n", exited(3, None))
    );
}

#[tokio::test]
async fn a_program_that_nobody_follows_never_waits_and_its_newest_output_is_kept() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let (go, done) = (local.path("go"), local.path("done"));
    let script =
        format!("until [ -e {go} ]; do sleep 0.01; done; seq 300000; touch {done}; sleep 600");
    table.start(&agent, shell(&script)).await.unwrap();
    leave(agent, table);
    drop(local.greet().await);
    std::fs::write(&go, "").unwrap();
    exists(&done).await;

    let (_agent, table) = next_host(&local).await;
    let view = one(&table);
    let all: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let total = all.len() as u64;
    let mut reader = table.read(&view.id, None).unwrap();
    let mut output = Vec::new();
    while view.output_from + (output.len() as u64) < total {
        match tokio::time::timeout(SOON, reader.next()).await.unwrap() {
            Some(OutputEvent::Data { data, .. }) => output.extend(data),
            other => panic!("{other:?}"),
        }
    }
    let from = usize::try_from(view.output_from).unwrap();
    assert!(all.len() - from >= 32 * 1024, "no more than {} bytes are kept", all.len() - from);
    assert!(all.len() - from <= 1 << 20, "all of it is kept: nothing was dropped");
    assert_eq!(String::from_utf8(output).unwrap(), all[from..]);
}

#[tokio::test]
async fn the_end_of_a_program_waits_for_the_next_host_and_is_told_to_each() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let (go, gone) = (local.path("go"), local.path("gone"));
    let script = format!("until [ -e {go} ]; do sleep 0.01; done; echo last; touch {gone}; exit 9");
    table.start(&agent, shell(&script)).await.unwrap();
    leave(agent, table);
    drop(local.greet().await);
    std::fs::write(&go, "").unwrap();
    exists(&gone).await;
    // It waits without turning round and round.
    local.idle().await;

    let (agent, table) = next_host(&local).await;
    assert_eq!(rest(&table, &one(&table)).await, (b"last\n".to_vec(), exited(9, None)));
    leave(agent, table);
    let (_agent, table) = next_host(&local).await;
    let view = one(&table);
    assert_eq!((view.output_from, view.output_to), (5, 5), "it was given to another");
    assert_eq!(rest(&table, &view).await, (Vec::new(), exited(9, None)));
}

#[tokio::test]
async fn signals_sizes_and_time_limits_reach_a_program_of_an_earlier_host() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let size = Some(TerminalSize { rows: 24, cols: 80 });
    let on_terminal = "stty size; read line; stty size; sleep 600";
    let on_terminal = ProcessRequest { terminal: size, ..shell(on_terminal) };
    let limited = ProcessRequest { timeout: Some(Duration::from_secs(2)), ..shell("sleep 600") };
    table.start(&agent, on_terminal).await.unwrap();
    table.start(&agent, limited).await.unwrap();
    leave(agent, table);

    let (_agent, table) = next_host(&local).await;
    let [terminal, limited] = &table.list()[..] else { panic!("{:?}", table.list()) };
    let mut reader = table.read(&terminal.id, None).unwrap();
    table.resize(&terminal.id, TerminalSize { rows: 40, cols: 100 }).unwrap();
    let piece = InputPiece { data: b"go\n".to_vec(), eof: false };
    table.give_input(&terminal.id, piece).await.unwrap();
    let mut shown = String::new();
    while !shown.contains("40 100") {
        match tokio::time::timeout(SOON, reader.next()).await.unwrap() {
            Some(OutputEvent::Data { data, .. }) => shown += std::str::from_utf8(&data).unwrap(),
            other => panic!("{other:?} after {shown:?}"),
        }
    }
    drop(reader);
    table.signal(&terminal.id, 9).unwrap();
    let ended = table.wait(&terminal.id, SOON).await.unwrap();
    assert_eq!(ended.end, Some(exited(137, Some(9))));
    let ended = table.wait(&limited.id, SOON).await.unwrap();
    let exit = ExecExit { exit_code: 137, signal: Some(9), timed_out: true };
    assert_eq!(ended.end, Some(ProcessEnd::Exited(exit)));
}

#[tokio::test]
async fn input_that_was_ended_stays_ended_for_the_next_host() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let done = local.path("done");
    let request = ProcessRequest {
        input: ProcessInput::Open,
        ..shell(&format!("cat; touch {done}; sleep 600"))
    };
    let view = table.start(&agent, request).await.unwrap();
    let piece = InputPiece { data: b"all".to_vec(), eof: true };
    table.give_input(&view.id, piece.clone()).await.unwrap();
    exists(&done).await;
    leave(agent, table);
    let (_agent, table) = next_host(&local).await;
    let refused = table.give_input(&view.id, piece).await.unwrap_err();
    assert_eq!(refused, ProcessError::NoInput { id: view.id });
}

#[tokio::test]
async fn what_is_removed_is_not_there_for_the_next_host() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let view = table.start(&agent, shell("sleep 600")).await.unwrap();
    table.remove(&view.id).unwrap();
    // The request to end it is on its way.
    let start = Instant::now();
    while agent.ping(SOON).await.unwrap().requests_running > 0 {
        assert!(start.elapsed() < SOON, "it runs on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    leave(agent, table);
    let (_agent, table) = next_host(&local).await;
    assert_eq!(table.list(), []);
}

#[tokio::test]
async fn a_program_has_one_follower_and_one_name() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    let keep = |name: &str| Some(Keep { name: name.to_owned(), record: String::new() });
    let start = |name: &str, script: &str| run(&["sh", "-c", script], keep(name));
    let follow = |name: &str| Request::Follow { name: name.to_owned(), output_credit: 1 << 20 };
    let code = |reply: (u64, Reply)| match reply {
        (_, Reply::Error { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    raw.ask(2, &start("a", "sleep 600")).await;
    assert!(matches!(raw.reply().await, (2, Reply::Started { .. })));
    raw.ask(3, &start("a", "true")).await;
    assert_eq!(code(raw.reply().await), "duplicate_id");
    raw.ask(4, &follow("a")).await;
    assert_eq!(code(raw.reply().await), "busy", "its starter follows it");
    raw.ask(5, &follow("b")).await;
    assert_eq!(code(raw.reply().await), "not_kept");
    raw.ask(6, &start(&"n".repeat(1000), "true")).await;
    assert_eq!(code(raw.reply().await), "bad_request");
    raw.ask(7, &start("b", "no such thing; exit 1")).await;
    while !matches!(raw.reply().await, (7, Reply::Exited { exit_code: 1, .. })) {}
    raw.ask(8, &run(&["no-such-program"], keep("c"))).await;
    assert_eq!(code(raw.reply().await), "exec_not_found");

    raw.hello(100).await;
    raw.ask(101, &follow("a")).await;
    let first = raw.reply().await;
    assert_eq!(first, (101, Reply::Followed { from: 0, takes_input: false }));
    raw.ask(102, &follow("a")).await;
    assert_eq!(code(raw.reply().await), "busy");
    raw.ask(103, &Request::ListKept { output_credit: 1 << 20 }).await;
    let mut names = Vec::new();
    loop {
        match raw.reply().await {
            (103, Reply::Kept { name, .. }) => names.push(name),
            (103, Reply::Done {}) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(names, ["a", "b"], "what could not be started is not kept");
    // Ended ones give way to others; running ones do not.
    for index in 0..KEPT_MAX as u64 + 8 {
        raw.ask(200 + index, &start(&format!("n{index}"), "exit")).await;
        while !matches!(raw.reply().await, (_, Reply::Exited { exit_code: 0, .. })) {}
    }
    raw.ask(900, &Request::Forget { name: "a".to_owned() }).await;
    assert_eq!(raw.reply().await, (900, Reply::Done {}));
    raw.ask(901, &follow("a")).await;
    assert_eq!(code(raw.reply().await), "not_kept");
}

#[tokio::test]
async fn a_guest_that_makes_up_programs_is_refused_or_left_out() {
    // Names that are none of ours.
    let (agent, mut raw) = client_of_raw_agent().await;
    let table = ProcessTable::default();
    let kept = |name: &str, record: String| Reply::Kept {
        name: name.to_owned(),
        record,
        pid: 1,
        inherited: true,
    };
    let play = async {
        let (id, Request::ListKept { .. }) = raw.request().await else { panic!() };
        raw.answer(id, &kept("../../etc", String::new())).await;
        raw.answer(id, &kept("pr-0123456789ab", "no JSON".to_owned())).await;
        raw.answer(id, &kept("pr-0123456789ab", "{}".to_owned())).await;
        raw.answer(id, &Reply::Done {}).await;
        let (id, Request::Follow { name, .. }) = raw.request().await else { panic!() };
        assert_eq!(name, "pr-0123456789ab");
        raw.answer(id, &Reply::Followed { from: u64::MAX, takes_input: true }).await;
    };
    let (followed, ()) = tokio::join!(table.follow_kept(&agent), play);
    let error = followed.unwrap_err().to_string();
    assert!(error.contains("more output than any program writes"), "{error}");
    assert_eq!(table.list(), []);

    // More of them than there can be.
    let (agent, mut raw) = client_of_raw_agent().await;
    let play = async {
        let (id, Request::ListKept { .. }) = raw.request().await else { panic!() };
        for index in 0..=REQUESTS_MAX {
            raw.answer(id, &kept(&format!("pr-{index:012x}"), String::new())).await;
        }
    };
    let (followed, ()) = tokio::join!(table.follow_kept(&agent), play);
    assert!(followed.unwrap_err().to_string().contains("more programs"));
}
