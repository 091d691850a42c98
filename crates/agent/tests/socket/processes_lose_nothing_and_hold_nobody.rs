//! Goal: the output of background processes is complete for those who read it, whenever and however
//! often they come; nobody who does not read holds a program up; input, signals and ends arrive.
//! No agent can make the daemon wait or grow. Method: the daemon's table of processes with the real
//! agent, and with one that breaks the rules. What would break it: credit that is given too early
//! or never, a reader that is not woken, an end before the last bytes.

use std::time::{Duration, Instant};

use crate::raw::{Raw, client_of_raw_agent};
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    Audience, ExecExit, GuestAgent, InputPiece, OutputEvent, OutputReader, ProcessEnd,
    ProcessError, ProcessInput, ProcessRequest, ProcessTable, ProcessView, Stream, TerminalSize,
};
use forkd_protocol::{Reply, Request};
use forkd_types::ProcessId;
use forkd_types::limit::{PROCESS_OUTPUT_BYTES_MAX, PROCESSES_PER_SANDBOX_MAX};
use rustix::process::{Pid, test_kill_process_group};

const KEPT: u64 = PROCESS_OUTPUT_BYTES_MAX as u64;

fn shell(script: &str) -> ProcessRequest {
    ProcessRequest::new(["sh", "-c", script])
}

fn exited(exit_code: i32, signal: Option<i32>) -> ProcessEnd {
    ProcessEnd::Exited(ExecExit { exit_code, signal, timed_out: false })
}

/// All that a reader gives.
#[derive(Default)]
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lost: u64,
    /// Whether each piece was text by itself.
    all_text: bool,
    to: u64,
    end: Option<ProcessEnd>,
}

async fn next(reader: &mut OutputReader) -> Option<OutputEvent> {
    tokio::time::timeout(SOON, reader.next()).await.expect("an event comes in time")
}

async fn read_all(reader: &mut OutputReader) -> Seen {
    let mut seen = Seen { all_text: true, ..Seen::default() };
    while let Some(event) = next(reader).await {
        assert!(seen.end.is_none(), "something follows the end: {event:?}");
        match event {
            OutputEvent::Data { stream, data, to } => {
                seen.all_text &= std::str::from_utf8(&data).is_ok();
                match stream {
                    Stream::Stdout => seen.stdout.extend(data),
                    Stream::Stderr => seen.stderr.extend(data),
                }
                seen.to = to;
            }
            OutputEvent::Lost { bytes, to } => (seen.lost, seen.to) = (seen.lost + bytes, to),
            OutputEvent::Ended(end) => seen.end = Some(end),
        }
    }
    assert!(seen.end.is_some(), "the stream ended without the process's end");
    seen
}

async fn ended(table: &ProcessTable, id: &ProcessId) -> ProcessView {
    let view = table.wait(id, SOON).await.unwrap();
    assert!(view.end.is_some(), "it does not end: {view:?}");
    view
}

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn piece(data: &[u8], eof: bool) -> InputPiece {
    InputPiece { data: data.to_vec(), eof }
}

#[tokio::test]
async fn output_comes_while_it_is_written_and_the_end_comes_last() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let script = "echo one; read line; echo two >&2; echo $line; exit 7";
    let request = ProcessRequest { input: ProcessInput::Open, ..shell(script) };
    let process = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    let first = next(&mut reader).await.unwrap();
    let expected = OutputEvent::Data { stream: Stream::Stdout, data: b"one\n".to_vec(), to: 4 };
    assert_eq!(first, expected, "it is there although the program waits");
    assert_eq!(table.view(&process.id).unwrap().end, None);
    table.give_input(&process.id, piece(b"three\n", true)).await.unwrap();
    let seen = read_all(&mut reader).await;
    assert_eq!((&seen.stdout[..], &seen.stderr[..]), (&b"three\n"[..], &b"two\n"[..]));
    assert_eq!((seen.end, seen.to), (Some(exited(7, None)), 14));
    assert_eq!(next(&mut reader).await, None);
}

#[tokio::test]
async fn a_reader_that_comes_back_at_any_offset_finds_the_rest() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let script = "seq 20000; seq 100 >&2; seq 20000";
    let process = table.start(&agent, shell(script)).await.unwrap();
    let numbers: String = (1..=20000).map(|number| format!("{number}\n")).collect();
    let mut stdout = Vec::new();
    let (mut at, mut readers) = (0, 0);
    let end = 'reading: loop {
        let mut reader = table.read(&process.id, Some(at)).unwrap();
        readers += 1;
        // A few events, then the connection breaks off.
        for _ in 0..2 {
            match next(&mut reader).await.unwrap() {
                OutputEvent::Data { stream, data, to } => {
                    assert_eq!(to, at + data.len() as u64, "a byte is missing or twice there");
                    at = to;
                    if stream == Stream::Stdout {
                        stdout.extend(data);
                    }
                }
                OutputEvent::Ended(end) => break 'reading end,
                lost @ OutputEvent::Lost { .. } => panic!("{lost:?}"),
            }
        }
    };
    assert_eq!(end, exited(0, None));
    assert!(readers > 2 && stdout == [numbers.as_bytes(), numbers.as_bytes()].concat());
    let again = read_all(&mut table.read(&process.id, Some(0)).unwrap()).await;
    assert!(again.stdout == stdout && again.to == at, "what is kept can be read again");
    let error = table.read(&process.id, Some(at + 1)).map(drop).unwrap_err();
    assert_eq!(error, ProcessError::PastTheEnd { from: at + 1, to: at });
}

#[tokio::test]
async fn a_program_without_a_reader_is_not_held_back_and_loses_its_oldest_output() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let request = shell("head -c 5000000 /dev/zero; echo; echo last");
    let process = table.start(&agent, request).await.unwrap();
    let view = ended(&table, &process.id).await;
    assert_eq!((view.end, view.output_to), (Some(exited(0, None)), 5_000_006));
    assert_eq!(view.output_from, 5_000_006 - KEPT);
    let seen = read_all(&mut table.read(&process.id, Some(6)).unwrap()).await;
    assert_eq!((seen.lost, seen.to), (view.output_from - 6, view.output_to));
    assert!(seen.stdout.len() as u64 == KEPT && seen.stdout.ends_with(b"\0\nlast\n"));
}

#[tokio::test]
async fn a_slow_reader_holds_the_program_back_and_loses_nothing() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let script = "seq 1 700000; echo done >&2";
    let process = table.start(&agent, shell(script)).await.unwrap();
    let mut reader = table.read(&process.id, Some(0)).unwrap();
    let first = next(&mut reader).await;
    let mut before = 0;
    wait_until("the program is held back", || {
        let now = table.view(&process.id).unwrap().output_to;
        std::mem::replace(&mut before, now) == now && now > KEPT / 2
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let view = table.view(&process.id).unwrap();
    assert_eq!((view.output_from, &view.end), (0, &None), "nothing that is unread is dropped");
    assert!(view.output_to <= KEPT + KEPT / 2, "{view:?}");
    let seen = read_all(&mut reader).await;
    let Some(OutputEvent::Data { data, .. }) = first else { panic!("{first:?}") };
    let expected: String = (1..=700_000).map(|number| format!("{number}\n")).collect();
    assert!([data, seen.stdout].concat() == expected.as_bytes(), "a byte is missing");
    assert_eq!((seen.lost, &seen.stderr[..]), (0, &b"done\n"[..]));
    assert_eq!(seen.end, Some(exited(0, None)));
}

#[tokio::test]
async fn a_reader_that_comes_late_loses_nothing_from_then_on() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let process = table.start(&agent, shell("seq 1 100000000")).await.unwrap();
    let output_from = || table.view(&process.id).unwrap().output_from;
    wait_until("as much is kept as can be", || output_from() > KEPT).await;
    let mut reader = table.read(&process.id, None).unwrap();
    let mut text = String::new();
    while text.len() as u64 <= 3 * KEPT {
        // Slower than the program, which fills all that it may.
        tokio::time::sleep(Duration::from_millis(20)).await;
        match next(&mut reader).await {
            Some(OutputEvent::Data { stream: Stream::Stdout, data, .. }) => {
                text.push_str(std::str::from_utf8(&data).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    table.remove(&process.id).unwrap();
    // The first line may have lost its beginning, the last one lacks its end.
    let lines: Vec<&str> = text.split('\n').collect();
    let numbers = lines[1..lines.len() - 1].iter().map(|line| line.parse::<u64>().unwrap());
    let first: u64 = lines[1].parse().unwrap();
    assert!(numbers.eq(first..first + lines.len() as u64 - 2), "a line is lost");
}

#[tokio::test]
async fn a_reader_that_is_expected_finds_all_of_it_however_late_it_comes() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let request = ProcessRequest { audience: Audience::Expected, ..shell("seq 1 400000") };
    let process = table.start(&agent, request).await.unwrap();
    let still_running = table.wait(&process.id, Duration::from_millis(500)).await.unwrap();
    assert_eq!((still_running.output_from, &still_running.end), (0, &None));
    let seen = read_all(&mut table.read(&process.id, Some(0)).unwrap()).await;
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(seen.stdout == expected.as_bytes() && seen.lost == 0, "a byte is missing");
    // The reader that was expected came and went: now nobody is.
    let request = ProcessRequest { audience: Audience::Expected, ..shell("seq 1 400000") };
    let process = table.start(&agent, request).await.unwrap();
    drop(table.read(&process.id, Some(0)).unwrap());
    assert_eq!(ended(&table, &process.id).await.end, Some(exited(0, None)));
}

#[tokio::test]
async fn a_program_goes_on_when_its_slow_reader_leaves() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let request = shell("head -c 6000000 /dev/zero");
    let process = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    next(&mut reader).await;
    let still_running = table.wait(&process.id, Duration::from_millis(500)).await.unwrap();
    assert_eq!(still_running.end, None, "nothing held it back");
    drop(reader);
    assert_eq!(ended(&table, &process.id).await.output_to, 6_000_000);
}

#[tokio::test]
async fn characters_of_both_streams_stay_whole_however_they_are_cut() {
    let local = LocalAgent::start();
    // On a busy host the pieces may come far apart.
    let patient = ProcessTable::with_hold(Duration::from_secs(600));
    let (agent, table) = (local.greet().await, ProcessTable::default());
    // Each character is written in two pieces, with a piece of the other stream between them.
    let script = r"for n in 1 2 3 4 5 6 7 8; do
        printf '\342\202'; printf '\303' >&2; sleep 0.005; printf '\254'; printf '\251' >&2
    done";
    let process = patient.start(&agent, shell(script)).await.unwrap();
    let seen = read_all(&mut patient.read(&process.id, Some(0)).unwrap()).await;
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "€".repeat(8));
    assert_eq!(String::from_utf8(seen.stderr).unwrap(), "é".repeat(8));
    assert!(seen.all_text, "a character was cut in two");
    // At the end half a character comes as it is, before the end.
    let process = table.start(&agent, shell(r"printf 'a\342\202'")).await.unwrap();
    let seen = read_all(&mut table.read(&process.id, Some(0)).unwrap()).await;
    assert_eq!(seen.stdout, b"a\xE2\x82");
    // Half a character without its other half is not held back for ever.
    let process = table.start(&agent, shell(r"printf '\342\202'; sleep 60")).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    let half = OutputEvent::Data { stream: Stream::Stdout, data: vec![0xE2, 0x82], to: 2 };
    assert_eq!(next(&mut reader).await, Some(half));
    table.remove(&process.id).unwrap();
}

#[tokio::test]
async fn input_arrives_in_order_and_a_program_that_does_not_read_refuses_more() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let request = ProcessRequest { input: ProcessInput::Open, ..ProcessRequest::new(["cat"]) };
    let process = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    let content: Vec<u8> = (0..900_000u32).flat_map(u32::to_le_bytes).collect();
    let give = async {
        for chunk in content.chunks(700_000) {
            table.give_input(&process.id, piece(chunk, false)).await.unwrap();
        }
        table.give_input(&process.id, piece(b"", true)).await.unwrap();
    };
    let (seen, ()) = tokio::join!(read_all(&mut reader), give);
    assert!(seen.stdout == content, "the input came back changed");
    let refused = table.give_input(&process.id, piece(b"x", false)).await.unwrap_err();
    assert_eq!(refused, ProcessError::Ended { id: process.id });

    let process = table.start(&agent, shell("cat")).await.unwrap();
    let refused = table.give_input(&process.id, piece(b"x", false)).await.unwrap_err();
    assert_eq!(refused, ProcessError::NoInput { id: process.id });

    // Who closes its input does not keep the giver waiting.
    let request = ProcessRequest { input: ProcessInput::Open, ..shell("exec <&-; sleep 60") };
    let process = table.start(&agent, request).await.unwrap();
    for _ in 0..6 {
        let given = table.give_input(&process.id, piece(&[0; 400_000], false));
        tokio::time::timeout(SOON, given).await.expect("it is not waited for").unwrap();
    }
    table.remove(&process.id).unwrap();
}

#[tokio::test]
async fn signals_limits_of_time_and_removal_end_the_whole_group() {
    let local = LocalAgent::start();
    // Longer than it is waited for.
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let process = table.start(&agent, shell("sleep 1000 & wait")).await.unwrap();
    table.signal(&process.id, 15).unwrap();
    assert_eq!(ended(&table, &process.id).await.end, Some(exited(143, Some(15))));
    let error = table.signal(&process.id, 15).unwrap_err();
    assert_eq!(error, ProcessError::Ended { id: process.id.clone() });

    let timeout = Some(Duration::from_secs(2));
    let request = ProcessRequest { timeout, ..shell("echo here; sleep 1000 & wait") };
    let process = table.start(&agent, request).await.unwrap();
    let seen = read_all(&mut table.read(&process.id, None).unwrap()).await;
    let exit = ExecExit { exit_code: 137, signal: Some(9), timed_out: true };
    assert_eq!((seen.end, &seen.stdout[..]), (Some(ProcessEnd::Exited(exit)), &b"here\n"[..]));

    let process = table.start(&agent, shell("echo x; (sleep 1000; true) & wait")).await.unwrap();
    let group = Pid::from_raw(process.pid.try_into().unwrap()).unwrap();
    assert!(test_kill_process_group(group).is_ok(), "it has a group of its own");
    let mut reader = table.read(&process.id, None).unwrap();
    next(&mut reader).await;
    table.remove(&process.id).unwrap();
    assert!(matches!(read_all(&mut reader).await.end, Some(ProcessEnd::Lost { .. })));
    assert!(matches!(table.view(&process.id), Err(ProcessError::Unknown { .. })));
    wait_until("the whole group is gone", || test_kill_process_group(group).is_err()).await;
}

#[tokio::test]
async fn a_terminal_is_of_the_user_whose_program_runs_on_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let terminal = Some(TerminalSize { rows: 24, cols: 80 });
    let user = Some("12345".to_owned());
    let request = shell("id -u; stat -c %u $(tty); echo opened > $(tty)");
    let process = table.start(&agent, ProcessRequest { terminal, user, ..request }).await.unwrap();
    let seen = read_all(&mut table.read(&process.id, None).unwrap()).await;
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "12345\r\n12345\r\nopened\r\n");
}

#[tokio::test]
async fn ended_processes_make_room_oldest_first_and_running_ones_do_not() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let running = table.start(&agent, shell("sleep 60")).await.unwrap();
    let first = table.start(&agent, shell("true")).await.unwrap();
    let second = table.start(&agent, shell("true")).await.unwrap();
    ended(&table, &first.id).await;
    ended(&table, &second.id).await;
    for _ in 3..=PROCESSES_PER_SANDBOX_MAX {
        table.start(&agent, shell("sleep 60")).await.unwrap();
    }
    assert!(table.view(&first.id).is_err(), "it was the oldest that had ended");
    assert!(table.view(&second.id).is_ok() && table.view(&running.id).is_ok());
    table.start(&agent, shell("sleep 60")).await.unwrap();
    assert!(table.view(&second.id).is_err());
    let error = table.start(&agent, shell("true")).await.unwrap_err();
    assert_eq!(error, ProcessError::TooMany { limit: PROCESSES_PER_SANDBOX_MAX });
    table.remove(&running.id).unwrap();
    table.start(&agent, shell("true")).await.unwrap();
    for process in table.list() {
        table.remove(&process.id).unwrap();
    }
}

#[tokio::test]
async fn a_program_that_cannot_start_is_an_error_and_takes_no_place() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    for _ in 0..2 * PROCESSES_PER_SANDBOX_MAX {
        let request = ProcessRequest::new(["no-such-program"]);
        let error = table.start(&agent, request).await.unwrap_err();
        assert!(matches!(error, ProcessError::Guest(_)), "{error}");
    }
    assert_eq!(table.list(), []);
}

/// Starts a process with an agent that is ours.
async fn start_with_raw_agent(agent: &GuestAgent, raw: &mut Raw) -> (ProcessTable, ProcessId, u64) {
    let table = ProcessTable::default();
    let answers = async {
        let (id, Request::Exec { .. }) = raw.request().await else { panic!() };
        raw.answer(id, &Reply::Started { pid: 1 }).await;
        id
    };
    let (process, id) = tokio::join!(table.start(agent, shell("x")), answers);
    (table, process.unwrap().id, id)
}

#[tokio::test]
async fn an_agent_that_breaks_the_rules_loses_the_process_and_its_reader_is_told() {
    let wrong = [
        ("more than its credit", Reply::Stdout { data: vec![0; 60_000] }, 100),
        ("a second start", Reply::Started { pid: 2 }, 1),
        ("no reply to this", Reply::Written { bytes: 2 }, 1),
    ];
    for (name, reply, count) in wrong {
        let (agent, mut raw) = client_of_raw_agent().await;
        let (table, process, id) = start_with_raw_agent(&agent, &mut raw).await;
        let mut reader = table.read(&process, None).unwrap();
        for _ in 0..count {
            raw.answer(id, &reply).await;
            raw.answer(id + 9, &reply).await;
        }
        let seen = read_all(&mut reader).await;
        assert!(matches!(seen.end, Some(ProcessEnd::Lost { .. })), "{name}: {:?}", seen.end);
        assert!(seen.stdout.len() as u64 <= KEPT + KEPT / 2, "{name}");
        loop {
            if let (ended, Request::Cancel {}) = raw.request().await {
                assert_eq!(ended, id, "{name}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn an_agent_that_never_answers_or_never_ends_can_be_left() {
    let (agent, mut raw) = client_of_raw_agent().await;
    let (table, process, id) = start_with_raw_agent(&agent, &mut raw).await;
    let mut reader = table.read(&process, None).unwrap();
    table.remove(&process).unwrap();
    assert!(matches!(read_all(&mut reader).await.end, Some(ProcessEnd::Lost { .. })));
    assert_eq!(raw.request().await, (id, Request::Cancel {}));

    let (table, process, _) = start_with_raw_agent(&agent, &mut raw).await;
    let mut reader = table.read(&process, None).unwrap();
    drop(raw);
    let Some(ProcessEnd::Lost { reason }) = read_all(&mut reader).await.end else { panic!() };
    assert!(reason.contains("closed"), "{reason}");
    let view = table.view(&process).unwrap();
    assert!(matches!(view.end, Some(ProcessEnd::Lost { .. })), "{view:?}");
}

#[tokio::test]
async fn a_terminal_has_a_size_that_changes_and_takes_control_characters() {
    let local = LocalAgent::start();
    let (agent, table) = (local.greet().await, ProcessTable::default());
    let script = "trap 'stty size' WINCH; tty; echo $TERM; stty size
        cat; echo over; while sleep 0.1; do :; done";
    let request =
        ProcessRequest { terminal: Some(TerminalSize { rows: 24, cols: 80 }), ..shell(script) };
    let process = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    let mut screen = String::new();
    read_until(&mut reader, &mut screen, "24 80\r\n").await;
    assert!(screen.starts_with("/dev/pts/") && screen.contains("\r\nxterm-256color\r\n"));
    table.give_input(&process.id, piece(b"typed\n", false)).await.unwrap();
    // Echoed by the terminal, then repeated by the program.
    read_until(&mut reader, &mut screen, "typed\r\ntyped\r\n").await;
    table.give_input(&process.id, piece(b"", true)).await.unwrap();
    read_until(&mut reader, &mut screen, "over\r\n").await;
    table.resize(&process.id, TerminalSize { rows: 50, cols: 132 }).unwrap();
    read_until(&mut reader, &mut screen, "50 132\r\n").await;
    table.remove(&process.id).unwrap();

    // A shell that starts may miss a signal; this program has none.
    let terminal = Some(TerminalSize { rows: 9, cols: 9 });
    let request = ProcessRequest { terminal, ..ProcessRequest::new(["cat"]) };
    let process = table.start(&agent, request).await.unwrap();
    let mut reader = table.read(&process.id, None).unwrap();
    table.give_input(&process.id, piece(b"x\n", false)).await.unwrap();
    read_until(&mut reader, &mut String::new(), "x\r\nx\r\n").await;
    table.give_input(&process.id, piece(b"\x03", false)).await.unwrap();
    assert_eq!(read_all(&mut reader).await.end, Some(exited(130, Some(2))));

    let process = table.start(&agent, shell("sleep 60")).await.unwrap();
    let refused = table.resize(&process.id, TerminalSize { rows: 1, cols: 1 }).unwrap_err();
    assert_eq!(refused, ProcessError::NoTerminal { id: process.id.clone() });
    table.remove(&process.id).unwrap();
}

/// Adds standard output until it ends with `text`.
async fn read_until(reader: &mut OutputReader, screen: &mut String, text: &str) {
    while !screen.ends_with(text) {
        match tokio::time::timeout(SOON, reader.next()).await {
            Ok(Some(OutputEvent::Data { stream: Stream::Stdout, data, .. })) => {
                screen.push_str(std::str::from_utf8(&data).unwrap());
            }
            other => panic!("{other:?} after {screen:?}, not {text:?}"),
        }
    }
}
