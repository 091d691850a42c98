//! Goal: what the routes for background processes and files promise holds for a client of the
//! daemon: events in order with the end last, a broken connection that loses nothing, a slow client
//! that holds the program back, input, terminals, signals, changes of files, values in
//! all their forms, errors with a code.
//!
//! Method: the released daemon, its socket, the typed client, one sandbox for all. Breaks when the
//! daemon and the client disagree, when an id is not the offset after its event, or when a stream
//! does not end with its sandbox.

use std::time::{Duration, Instant};

use forkd_client::api::{
    CreateProcess, EvalRequest, FileChange, OutputEvent, Process, SignalName, TtySize,
};
use forkd_client::{Client, ClientError, Depth, InputEnd, OutputStream, Target};
use forkd_types::ProcessState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::forkd::Forkd;

const SOON: Duration = Duration::from_secs(120);

/// A sandbox and its client.
struct Scene {
    client: Client,
    id: String,
}

impl Scene {
    async fn shell(&self, script: &str) -> Process {
        self.start(CreateProcess::new(["/bin/sh", "-c", script])).await
    }

    async fn start(&self, body: CreateProcess) -> Process {
        self.client.create_process(&self.id, &body).await.unwrap()
    }

    async fn output(&self, process: &Process, from: Option<u64>) -> OutputStream {
        self.client.process_output(&self.id, &process.id, from).await.unwrap()
    }

    /// The end of a process.
    async fn ended(&self, process: &Process) -> Process {
        let begun = Instant::now();
        loop {
            let ended = self.client.wait_process(&self.id, &process.id, 30).await.unwrap();
            if ended.state == ProcessState::Exited {
                return ended;
            }
            assert!(begun.elapsed() < SOON, "it does not end: {ended:?}");
        }
    }
}

async fn next(stream: &mut OutputStream) -> Option<OutputEvent> {
    tokio::time::timeout(SOON, stream.next()).await.expect("an event comes").unwrap()
}

/// Adds what was written to standard output; true at the end.
fn add(event: Option<OutputEvent>, stdout: &mut Vec<u8>) -> bool {
    match event {
        Some(OutputEvent::Stdout(data)) => stdout.extend(data.bytes().unwrap()),
        Some(OutputEvent::Exit(_)) => return true,
        other => panic!("{other:?}"),
    }
    false
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

fn code_of(error: ClientError) -> String {
    match error {
        ClientError::Api(failure) => failure.code,
        other => panic!("{other}"),
    }
}

#[test]
fn a_client_follows_feeds_and_ends_processes_and_loses_nothing() {
    let mut forkd = Forkd::new();
    forkd.template("python", "t", 256);
    forkd.hold_to_contract();
    let id = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    let client = Client::new(Target::Socket(forkd.socket())).unwrap();
    let scene = Scene { client, id };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        order_and_end(&scene).await;
        broken_connections(&scene).await;
        events_on_the_wire(&scene).await;
        slow_and_absent_readers(&scene).await;
        input_and_signals(&scene).await;
        terminals(&scene).await;
        files(&scene).await;
        values(&scene).await;
        end_of_the_sandbox(&scene).await;
    });
}

async fn order_and_end(scene: &Scene) {
    // It goes on when what it has written has arrived: nothing orders its two streams otherwise.
    let script = "echo 1; read go; echo 2 >&2; read go; printf '\\377'; read go; exit 3";
    let body = CreateProcess { stdin: true, ..CreateProcess::new(["/bin/sh", "-c", script]) };
    let process = scene.start(body).await;
    assert!(
        process.id.starts_with("pr-") && process.state == ProcessState::Running && process.pid > 1
    );
    let mut stream = scene.output(&process, None).await;
    let mut seen = Vec::new();
    while let Some(event) = next(&mut stream).await {
        seen.push(serde_json::to_string(&event).unwrap());
        if !matches!(event, OutputEvent::Exit(_)) {
            let (line, open) = (b"\n".to_vec(), InputEnd::Open);
            scene.client.send_stdin(&scene.id, &process.id, line, open).await.unwrap();
        }
    }
    let expected = [
        r#"{"event":"stdout","data":{"text":"1\n"}}"#,
        r#"{"event":"stderr","data":{"text":"2\n"}}"#,
        r#"{"event":"stdout","data":{"base64":"/w=="}}"#,
        r#"{"event":"exit","data":{"exit_code":3,"signal":null,"timed_out":false}}"#,
    ];
    assert_eq!((seen, stream.offset()), (expected.map(str::to_owned).to_vec(), 5));
    let view = scene.client.process(&scene.id, &process.id).await.unwrap();
    assert_eq!((view.state.as_str(), view.exit_code), ("exited", Some(3)));
    assert_eq!(scene.client.processes(&scene.id).await.unwrap(), [view]);
}

async fn broken_connections(scene: &Scene) {
    let process = scene.shell("seq 60000").await;
    let mut stdout = Vec::new();
    let mut at = None;
    'reading: loop {
        let mut stream = scene.output(&process, at).await;
        for _ in 0..2 {
            if add(next(&mut stream).await, &mut stdout) {
                break 'reading;
            }
            at = Some(stream.offset());
        }
    }
    assert!(stdout == numbers(60_000), "a byte is lost or doubled");
    let past = at.unwrap() + 1;
    let refused = scene.client.process_output(&scene.id, &process.id, Some(past)).await;
    assert_eq!(code_of(refused.unwrap_err()), "bad_request");
}

/// The whole answer to a request for the output of `process`, byte by byte.
async fn raw_output(scene: &Scene, process: &Process, last_event_id: &str) -> String {
    let Target::Socket(socket) = scene.client.target() else { panic!("a socket") };
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let request = format!(
        "GET /v1/sandboxes/{}/processes/{}/output?from=0 HTTP/1.1\r\nHost: localhost\r\n\
         Last-Event-ID: {last_event_id}\r\nConnection: close\r\n\r\n",
        scene.id, process.id
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn events_on_the_wire(scene: &Scene) {
    let process = scene.shell("printf '1\\n2\\n3\\n'").await;
    scene.ended(&process).await;
    let answer = raw_output(scene, &process, "2").await;
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    let (_, events) = answer.split_once("event: ").unwrap();
    let expected = "stdout\ndata: {\"text\":\"2\\n3\\n\"}\nid: 6\n\n";
    assert!(events.starts_with(expected), "the header counts more than the address: {events}");
    let end = "event: exit\ndata: {\"exit_code\":0,\"signal\":null,\"timed_out\":false}\n\n";
    assert!(events.contains(end), "{events}");
    assert!(raw_output(scene, &process, "x").await.starts_with("HTTP/1.1 400 "));
}

async fn slow_and_absent_readers(scene: &Scene) {
    let script = "seq 800000; echo done > /tmp/done";
    let process = scene.shell(script).await;
    let mut stream = scene.output(&process, Some(0)).await;
    let mut stdout = Vec::new();
    add(next(&mut stream).await, &mut stdout);
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let view = scene.client.process(&scene.id, &process.id).await.unwrap();
        assert_eq!(view.state, ProcessState::Running, "it is not held back");
        if std::mem::replace(&mut before, view.output_to) == view.output_to {
            break;
        }
    }
    while !add(next(&mut stream).await, &mut stdout) {}
    assert!(stdout == numbers(800_000), "a byte is lost");

    let process = scene.shell("seq 400000").await;
    let ended = scene.ended(&process).await;
    assert_eq!(ended.output_to - ended.output_from, 1 << 20, "nobody held it back");
    let mut stream = scene.output(&process, Some(10)).await;
    let bytes = ended.output_from - 10;
    assert_eq!(next(&mut stream).await, Some(OutputEvent::Lost { bytes }));
}

async fn input_and_signals(scene: &Scene) {
    let client = &scene.client;
    let body = CreateProcess { stdin: true, ..CreateProcess::new(["cat"]) };
    let process = scene.start(body).await;
    let send = async |text: &str, end| {
        client.send_stdin(&scene.id, &process.id, text.as_bytes().to_vec(), end).await
    };
    send("one ", InputEnd::Open).await.unwrap();
    send("two", InputEnd::Eof).await.unwrap();
    assert_eq!(scene.ended(&process).await.exit_code, Some(0));
    let mut stdout = Vec::new();
    let mut stream = scene.output(&process, None).await;
    while !add(next(&mut stream).await, &mut stdout) {}
    assert_eq!(stdout, b"one two");
    assert_eq!(code_of(send("x", InputEnd::Open).await.unwrap_err()), "process_ended");

    let process = scene.start(CreateProcess::new(["sleep", "1000"])).await;
    let name = SignalName::Name("TERM".to_owned());
    client.signal_process(&scene.id, &process.id, name).await.unwrap();
    let ended = scene.ended(&process).await;
    assert_eq!((ended.exit_code, ended.signal), (Some(143), Some(15)));
    let body = CreateProcess { timeout_secs: Some(1), ..CreateProcess::new(["sleep", "1000"]) };
    assert!(scene.ended(&scene.start(body).await).await.timed_out);

    client.delete_process(&scene.id, &process.id).await.unwrap();
    let gone = client.process(&scene.id, &process.id).await.unwrap_err();
    assert_eq!(code_of(gone), "process_not_found");
    let absent = CreateProcess::new(["no-such-program"]);
    let refused = client.create_process(&scene.id, &absent).await.unwrap_err();
    assert_eq!(code_of(refused), "guest_refused");
}

async fn terminals(scene: &Scene) {
    let client = &scene.client;
    let tty = Some(TtySize { rows: 24, cols: 80 });
    let script = "stty size; read line; stty size; cat; echo end";
    let process =
        scene.start(CreateProcess { tty, ..CreateProcess::new(["sh", "-c", script]) }).await;
    let mut stream = scene.output(&process, None).await;
    let mut screen = Vec::new();
    while screen != b"24 80\r\n" {
        assert!(!add(next(&mut stream).await, &mut screen), "{screen:?}");
    }
    let size = TtySize { rows: 50, cols: 132 };
    client.resize_process(&scene.id, &process.id, size).await.unwrap();
    let typed = b"\n".to_vec();
    client.send_stdin(&scene.id, &process.id, typed, InputEnd::Eof).await.unwrap();
    while !add(next(&mut stream).await, &mut screen) {}
    assert_eq!(String::from_utf8_lossy(&screen), "24 80\r\n\r\n50 132\r\nend\r\n");

    let process = scene.shell("sleep 1000").await;
    let refused = client.resize_process(&scene.id, &process.id, size).await.unwrap_err();
    assert_eq!(code_of(refused), "no_terminal");
    client.delete_process(&scene.id, &process.id).await.unwrap();
}

async fn files(scene: &Scene) {
    let (client, id) = (&scene.client, &scene.id);
    client.make_directory(id, "/srv/tree/sub", None).await.unwrap();
    let mut watch = client.watch_files(id, "/srv/tree", Depth::Recursive).await.unwrap();
    client.write_file(id, "/srv/tree/sub/b", Some(0o640), b"12345".to_vec()).await.unwrap();
    scene.ended(&scene.shell("cd /srv/tree; mv sub/b a; rm a; mkdir c; touch c/end").await).await;
    let path = |name: &str| format!("/srv/tree/{name}");
    let mut seen = Vec::new();
    while seen.last() != Some(&FileChange::Created { path: path("c/end") }) {
        let change = tokio::time::timeout(SOON, watch.next()).await.expect("a change is told");
        seen.push(change.unwrap().unwrap());
    }
    let expected = [
        FileChange::Created { path: path("sub/b") },
        FileChange::Renamed { path: path("a"), from: path("sub/b") },
        FileChange::Removed { path: path("a") },
        FileChange::Created { path: path("c") },
    ];
    assert!(expected.iter().all(|change| seen.contains(change)), "{seen:?}");

    client.write_file(id, &path("b"), Some(0o640), b"12345".to_vec()).await.unwrap();
    let entries = client.list_files(id, "/srv/tree").await.unwrap();
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b", "c", "sub"]);
    let file = client.stat_file(id, &path("b")).await.unwrap();
    assert_eq!((file.kind.as_str(), file.size_bytes, &*file.mode), ("file", 5, "0640"));
    assert_eq!((&file, entries[1].kind.as_str()), (&entries[0], "directory"));
    let refused = client.remove_file(id, "/srv/tree", Depth::Itself).await.unwrap_err();
    assert_eq!(code_of(refused), "guest_refused");
    client.remove_file(id, "/srv/tree", Depth::Recursive).await.unwrap();
    let refused = client.stat_file(id, "/srv/tree").await.unwrap_err();
    assert_eq!(code_of(refused), "file_not_found");
    let gone = loop {
        match tokio::time::timeout(SOON, watch.next()).await.expect("an end comes").unwrap() {
            Some(FileChange::Gone { reason }) => break reason,
            Some(_) => {}
            None => panic!("the stream ended without a word"),
        }
    };
    assert!(gone.contains("removed"), "{gone}");
}

async fn values(scene: &Scene) {
    let code = "class Plot:
    def __repr__(self): return 'plot'
    def _repr_html_(self): return '<b>plot</b>'
    def _repr_png_(self): return bytes(range(256)) * 4000
Plot()";
    let answer = scene.client.eval(&scene.id, &EvalRequest::new(code)).await.unwrap();
    let forms: Vec<(&str, usize)> =
        answer.parts.iter().map(|part| (part.mime.as_str(), part.data.len())).collect();
    let base64 = 4 * (256 * 4000_usize).div_ceil(3);
    assert_eq!(forms, [("text/plain", 4), ("text/html", 11), ("image/png", base64)]);
    assert_eq!(answer.result.as_deref(), Some("plot"));
    assert!(answer.parts[2].data.starts_with("AAECAwQF"));
}

async fn end_of_the_sandbox(scene: &Scene) {
    let done = scene.shell("echo kept").await;
    scene.ended(&done).await;
    let process = scene.shell("echo here; sleep 1000").await;
    let mut stream = scene.output(&process, None).await;
    add(next(&mut stream).await, &mut Vec::new());
    scene.client.delete_sandbox(&scene.id).await.unwrap();
    assert!(matches!(next(&mut stream).await, Some(OutputEvent::Gone { .. })));
    assert_eq!(next(&mut stream).await, None);
    let error = scene.client.processes(&scene.id).await.unwrap_err();
    assert_eq!(code_of(error), "sandbox_not_found");
}
