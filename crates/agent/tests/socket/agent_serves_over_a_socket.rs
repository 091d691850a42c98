//! Goal: the agent and the daemon's client together do what the daemon promises to its users.
//! Method: the real agent as an ordinary process, the real client, a Unix socket between them.
//! What would break it: a race between a program's end and its output, a lost or mixed-up reply,
//! a wait without an end.

use std::time::{Duration, Instant};

use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    EvalRequest, ExecEvent, ExecOutput, ExecRequest, FileWrite, GuestError, Identity,
    OUTPUT_BYTES_MAX,
};

fn shell(script: &str) -> ExecRequest {
    ExecRequest { timeout: SOON, ..ExecRequest::new(["sh", "-c", script]) }
}

fn python(code: &str) -> EvalRequest {
    EvalRequest { code: code.to_owned(), timeout: SOON }
}

fn remote_code(error: GuestError) -> String {
    match error {
        GuestError::Remote { code, .. } => code,
        other => panic!("not the agent's own error: {other}"),
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn hello_tells_facts_and_ping_answers() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let facts = agent.hello(SOON).await.unwrap();
    assert_eq!((facts.protocol, facts.epoch, facts.is_init), (1, 2, false));
    assert!(!facts.kernel_release.is_empty() && !facts.has_root_disk);
    assert_eq!(agent.ping(SOON).await.unwrap().epoch, 2);
}

#[tokio::test]
async fn exec_reports_output_exit_code_and_signal() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let output = agent.exec(shell("echo out; echo err >&2; exit 7")).await.unwrap();
    let expected = ExecOutput {
        stdout: b"out\n".to_vec(),
        stderr: b"err\n".to_vec(),
        exit_code: 7,
        signal: None,
        timed_out: false,
    };
    assert_eq!(output, expected);
    let output = agent.exec(shell("kill -TERM $$")).await.unwrap();
    assert_eq!((output.exit_code, output.signal), (128 + 15, Some(15)));
}

#[tokio::test]
async fn exec_output_of_many_megabytes_is_binary_safe_and_complete() {
    let local = LocalAgent::start();
    let content: Vec<u8> =
        (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(local.path("content"), &content).unwrap();
    let agent = local.greet().await;
    let script = format!("cat {0}; cat {0} >&2", local.path("content"));
    let output = agent.exec(shell(&script)).await.unwrap();
    assert!(output.stdout == content && output.stderr == content);
}

#[tokio::test]
async fn exec_passes_input_of_many_megabytes_both_ways_at_once() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let mut request = ExecRequest::new(["cat"]);
    request.stdin = (0..5_000_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let output = agent.exec(request.clone()).await.unwrap();
    assert!(output.stdout == request.stdin);
    // A program that reads nothing is no obstacle.
    request.args = vec!["true".to_owned()];
    assert_eq!(agent.exec(request).await.unwrap().exit_code, 0);
    // Without input there is an empty one.
    assert_eq!(agent.exec(ExecRequest::new(["cat"])).await.unwrap().stdout, b"");
}

#[tokio::test]
async fn exec_takes_environment_and_directory() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let mut request = shell("echo \"$COLOUR $HOME\"; pwd");
    request.env = vec![("COLOUR".to_owned(), "ré d".to_owned())];
    request.cwd = Some("/usr".to_owned());
    let output = agent.exec(request).await.unwrap();
    assert!(text(&output.stdout).starts_with("ré d /"), "{output:?}");
    assert!(text(&output.stdout).ends_with("\n/usr\n"));
}

#[tokio::test]
async fn exec_runs_as_the_user_that_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let local = LocalAgent::start();
    let agent = local.greet().await;
    for (user, told) in [
        ("12345:54321", "12345 54321 54321 /\n"),
        ("nobody:54321", "65534 54321 54321 /\n"),
        ("0", "0 0 0 "),
    ] {
        let mut request = shell("echo $(id -u) $(id -g) $(id -G) $PWD");
        request.user = Some(user.to_owned());
        let output = agent.exec(request).await.unwrap();
        assert!(text(&output.stdout).starts_with(told), "{user}: {output:?}");
    }
    let mut request = shell("true");
    request.user = Some("no-such-user".to_owned());
    let refused = agent.exec(request).await.unwrap_err();
    assert!(refused.to_string().contains("no-such-user"), "{refused}");
    assert_eq!(remote_code(refused), "user_not_found");
}

#[tokio::test]
async fn exec_that_cannot_start_says_why() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let missing = agent.exec(ExecRequest::new(["no-such-program"])).await.unwrap_err();
    assert!(missing.to_string().contains("no-such-program"));
    assert_eq!(remote_code(missing), "exec_not_found");
    let denied = agent.exec(ExecRequest::new(["/etc/passwd"])).await.unwrap_err();
    assert_eq!(remote_code(denied), "exec_denied");
    let mut request = shell("true");
    request.cwd = Some("/no/such/place".to_owned());
    assert_eq!(remote_code(agent.exec(request).await.unwrap_err()), "cwd_not_found");
    let empty = agent.exec(ExecRequest::new(Vec::<String>::new())).await.unwrap_err();
    assert_eq!(remote_code(empty), "bad_request");
    let zero = agent.exec(ExecRequest::new(["echo", "a\0b"])).await.unwrap_err();
    assert_eq!(remote_code(zero), "bad_request");
}

#[tokio::test]
async fn exec_out_of_time_kills_grandchildren_too_and_keeps_the_output() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let (go, mark) = (local.path("go"), local.path("alive"));
    let grandchild = format!("until test -e {go}; do sleep 0.05; done; touch {mark}");
    let mut request = shell(&format!("echo begun; sh -c '{grandchild}' & sleep 100"));
    request.timeout = Duration::from_secs(2);
    let output = agent.exec(request).await.unwrap();
    assert!(output.timed_out && output.exit_code == 137 && output.stdout == b"begun\n");
    std::fs::write(go, "").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!std::fs::exists(mark).unwrap(), "the grandchild lived on");
}

#[tokio::test]
async fn exec_ends_although_a_background_process_holds_its_output() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let (go, mark) = (local.path("go"), local.path("mark"));
    // The background process writes after the report: it must not be ended by a broken pipe.
    let script = format!(
        "(until test -e {go}; do sleep 0.05; done; echo late; touch {mark}; sleep 20) & echo done"
    );
    let output = agent.exec(shell(&script)).await.unwrap();
    assert_eq!((&output.stdout[..], output.timed_out), (&b"done\n"[..], false));
    std::fs::write(go, "").unwrap();
    let start = Instant::now();
    while !std::fs::exists(&mark).unwrap() {
        assert!(start.elapsed() < SOON, "the background process was ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn two_execs_at_once_do_not_mix_their_output() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let run = |letter: &str| {
        agent.exec(shell(&format!("for i in $(seq 2000); do echo {letter}; done; sleep 0.2")))
    };
    let start = Instant::now();
    let (a, b) = tokio::join!(run("a"), run("b"));
    assert_eq!(a.unwrap().stdout, b"a\n".repeat(2000));
    assert_eq!(b.unwrap().stdout, b"b\n".repeat(2000));
    assert!(start.elapsed() < SOON);
}

#[tokio::test]
async fn many_short_programs_all_report_their_own_exit_code() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let tasks: Vec<_> = (0..100)
        .map(|code| {
            let agent = agent.clone();
            tokio::spawn(async move { agent.exec(shell(&format!("exit {code}"))).await })
        })
        .collect();
    for (code, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap().unwrap().exit_code, code);
    }
}

#[tokio::test]
async fn too_much_output_is_an_error_that_ends_the_program() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let flood = agent.exec(shell("echo $$ >&2; exec cat /dev/zero")).await;
    assert_eq!(flood.unwrap_err(), GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
    wait_until_idle(&agent).await;
}

async fn wait_until_idle(agent: &forkd_engine::guest::GuestAgent) {
    let start = Instant::now();
    while agent.ping(SOON).await.unwrap().requests_running > 0 {
        assert!(start.elapsed() < SOON, "the request goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_slow_reader_slows_only_its_own_program_and_loses_nothing() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let mut stream = agent.exec_stream(shell("head -c 3000000 /dev/zero; echo end")).unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Started(_))));
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Its neighbours are not held up.
    assert_eq!(agent.exec(shell("echo quick")).await.unwrap().stdout, b"quick\n");
    let mut bytes = 0;
    while let Some(event) = stream.next().await.unwrap() {
        if let ExecEvent::Stdout(data) = event {
            bytes += data.len();
        }
    }
    assert_eq!(bytes, 3_000_004);
}

#[tokio::test]
async fn dropping_a_running_program_kills_it() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let mut stream = agent.exec_stream(shell("sleep 100")).unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Started(_))));
    drop(stream);
    wait_until_idle(&agent).await;
}

#[tokio::test]
async fn eval_keeps_its_state_and_tells_results_and_exceptions() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let first = agent.eval(python("import math\nx = 40\nprint('hi')")).await.unwrap();
    assert_eq!((first.result, first.error, text(&first.stdout)), (None, None, "hi\n"));
    let second = agent.eval(python("x += 2\nx")).await.unwrap();
    assert_eq!(second.result.as_deref(), Some("42"));
    let raised = agent.eval(python("def f():\n    return 1/0\nf()")).await.unwrap();
    let error = raised.error.unwrap();
    assert!(error.contains("ZeroDivisionError") && error.contains("return 1/0"), "{error}");
    assert!(!error.contains("_forkd_driver") && !raised.state_lost, "{error}");
    let syntax = agent.eval(python("1 +")).await.unwrap();
    assert!(syntax.error.unwrap().contains("SyntaxError"));
    let quit = agent.eval(python("import sys; sys.exit(3)")).await.unwrap();
    assert!(quit.error.unwrap().contains("SystemExit: 3"));
    let large = agent.eval(python("print('é' * 1000000); 'y' * 10**6")).await.unwrap();
    assert_eq!(large.stdout.len(), 2_000_001);
    assert!(large.result.unwrap().ends_with("..."));
    assert_eq!(agent.eval(python("x")).await.unwrap().result.as_deref(), Some("42"));
}

#[tokio::test]
async fn eval_out_of_time_is_interrupted_and_keeps_its_state() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    agent.eval(python("x = 5")).await.unwrap();
    let code = "import time\nprint('a')\ntime.sleep(100)".to_owned();
    let timeout = Duration::from_secs(2);
    let output = agent.eval(EvalRequest { code, timeout }).await.unwrap();
    assert!(output.timed_out && !output.state_lost, "{output:?}");
    assert!(output.error.unwrap().contains("KeyboardInterrupt") && output.stdout == b"a\n");
    assert_eq!(agent.eval(python("x")).await.unwrap().result.as_deref(), Some("5"));
}

#[tokio::test]
async fn an_interrupt_without_effect_is_repeated_before_the_state_is_lost() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let deaf_once = "import signal, time
calls = 0
def once(*_):
    global calls
    calls += 1
    if calls > 1: raise KeyboardInterrupt
signal.signal(signal.SIGINT, once)
None";
    assert_eq!(agent.eval(python(deaf_once)).await.unwrap().error, None);
    let code = "while True: time.sleep(0.01)".to_owned();
    let timeout = Duration::from_millis(300);
    let output = agent.eval(EvalRequest { code, timeout }).await.unwrap();
    assert!(output.timed_out && !output.state_lost, "{output:?}");
    assert_eq!(agent.eval(python("calls")).await.unwrap().result.as_deref(), Some("2"));
}

#[tokio::test]
async fn eval_that_resists_is_killed_and_says_that_its_state_is_lost() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    // Before its time is counted: it takes a busy host some of it to start an interpreter.
    let resist = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nNone";
    assert_eq!(agent.eval(python(resist)).await.unwrap().error, None);
    let code = "while True: time.sleep(1)";
    let timeout = Duration::from_millis(300);
    let output = agent.eval(EvalRequest { code: code.to_owned(), timeout }).await.unwrap();
    assert!(output.timed_out && output.state_lost, "{output:?}");
    assert!(output.error.unwrap().contains("time was over"));
    let next = agent.eval(python("1 + 1")).await.unwrap();
    assert_eq!((next.result.as_deref(), next.state_lost), (Some("2"), false));
}

#[tokio::test]
async fn eval_survives_the_interpreters_death_and_forks() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let dead = agent.eval(python("import os\nos._exit(9)")).await.unwrap();
    assert!(dead.state_lost && dead.error.unwrap().contains("exit code 9"));
    // A forked child that runs out of code must not answer in its parent's name.
    let forked =
        agent.eval(python("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0"));
    assert_eq!(forked.await.unwrap().result.as_deref(), Some("True"));
    assert_eq!(agent.eval(python("7")).await.unwrap().result.as_deref(), Some("7"));
    // Death between two calls is told with the next one.
    let dies_soon = "import threading, time\n\
        threading.Thread(target=lambda: (time.sleep(0.1), os._exit(1))).start()";
    agent.eval(python(dies_soon)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = agent.eval(python("'pid' in globals()")).await.unwrap();
    assert_eq!((after.result.as_deref(), after.state_lost), (Some("False"), true));
}

#[tokio::test]
async fn eval_without_python_says_so() {
    let local = LocalAgent::start_with(|command| {
        command.env("PATH", "/no/such/folder");
    });
    let agent = local.greet().await;
    assert!(!agent.hello(SOON).await.unwrap().python);
    assert_eq!(remote_code(agent.eval(python("1")).await.unwrap_err()), "python_missing");
}

#[tokio::test]
async fn files_survive_the_round_trip_and_are_replaced_whole() {
    use std::os::unix::fs::PermissionsExt;
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let content: Vec<u8> = (0..5 * 1024 * 1024u32).map(|n| (n >> 3).to_le_bytes()[0]).collect();
    let path = local.path("a/b/file");
    let file = FileWrite { mode: Some(0o750), create_parents: true, ..FileWrite::new(&path) };
    agent.write_file(file, content.clone(), SOON).await.unwrap();
    assert!(agent.read_file(&path, SOON).await.unwrap() == content);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    // Replacing keeps the mode; appending adds; a link is followed.
    let link = local.path("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    agent.write_file(FileWrite::new(&link), b"new".to_vec(), SOON).await.unwrap();
    let more = FileWrite { append: true, ..FileWrite::new(&path) };
    agent.write_file(more, b" and more".to_vec(), SOON).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new and more");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    agent.write_file(FileWrite::new(local.path("empty")), Vec::new(), SOON).await.unwrap();
    assert_eq!(agent.read_file(&local.path("empty"), SOON).await.unwrap(), b"");
    let leftovers = std::fs::read_dir(local.path("a/b")).unwrap().count();
    assert_eq!(leftovers, 1, "a temporary file was left behind");
}

#[tokio::test]
async fn file_errors_name_the_path_and_the_reason() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let missing = agent.read_file("/no/such/file", SOON).await.unwrap_err();
    assert!(missing.to_string().contains("/no/such/file: No such file"), "{missing}");
    assert_eq!(remote_code(missing), "file_not_found");
    assert_eq!(remote_code(agent.read_file("/", SOON).await.unwrap_err()), "file_failed");
    assert_eq!(remote_code(agent.read_file("x", SOON).await.unwrap_err()), "bad_request");
    let file = FileWrite::new("/proc/no-such-entry");
    let refused = agent.write_file(file, vec![1; 300_000], SOON).await.unwrap_err();
    assert!(refused.to_string().contains("/proc/no-such-entry"), "{refused}");
    let endless = agent.read_file("/dev/zero", SOON).await.unwrap_err();
    assert_eq!(endless, GuestError::FileTooLarge { limit: OUTPUT_BYTES_MAX });
}

#[tokio::test]
async fn a_file_of_any_size_comes_piece_by_piece_and_no_more_of_it_than_is_allowed() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let (path, bytes) = (local.path("large"), OUTPUT_BYTES_MAX + 3);
    let file = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", bytes - 3).unwrap();
    let mut reader = agent.open_file(&path, bytes, SOON).await.unwrap();
    let (mut arrived, mut last) = (0, Vec::new());
    while let Some(piece) = reader.next().await.unwrap() {
        arrived += piece.len() as u64;
        last = piece;
    }
    assert!(arrived == bytes && last.ends_with(b"end"), "{arrived} bytes");
    assert_eq!(reader.next().await.unwrap(), None, "it stays at its end");

    let mut reader = agent.open_file("/dev/zero", 1 << 20, SOON).await.unwrap();
    let mut arrived = 0;
    let error = loop {
        match reader.next().await {
            Ok(piece) => arrived += piece.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error, GuestError::FileTooLarge { limit: 1 << 20 });
    assert!(arrived <= 1 << 20, "{arrived} bytes of 1 MiB");
    drop(reader);
    let missing = agent.open_file("/no/such/file", 1, SOON).await.err().unwrap();
    assert_eq!(remote_code(missing), "file_not_found");
    // What was not taken holds up nothing.
    let unread = agent.open_file("/dev/zero", u64::MAX, SOON).await.unwrap();
    assert_eq!(agent.read_file("/dev/null", SOON).await.unwrap(), b"");
    drop(unread);
    assert_eq!(agent.read_file("/dev/null", SOON).await.unwrap(), b"");
}

#[tokio::test]
async fn an_agent_that_is_not_the_first_process_changes_nothing_on_the_machine() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let identity = Identity {
        instance_id: "sb-1".to_owned(),
        hostname: "sb-1".to_owned(),
        machine_id: "0".repeat(32),
    };
    let renewing = agent.begin_renewal(identity, SOON).await.unwrap();
    assert_eq!(remote_code(renewing.confirmed().await.unwrap_err()), "not_init");
    assert_eq!(remote_code(agent.power_off(SOON).await.unwrap_err()), "not_init");
}
