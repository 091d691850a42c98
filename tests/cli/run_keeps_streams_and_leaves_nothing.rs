//! Goal: `forkd run` behaves as the program that it runs: its streams, as they come, its exit code,
//! its signals; and whatever happens, no sandbox is left. A template that is missing is built.
//!
//! Method: the released binary, one daemon. Breaks when output comes only at the end, when a signal
//! ends the command before it has removed the sandbox, or when an error does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::forkd::Forkd;
use crate::terminal::end_of;

/// A `forkd run` of a shell script that has written its first line.
fn started(forkd: &Forkd, script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = forkd
        .command(&["-q", "run", "tiny", "--timeout-secs", "60", "--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "it comes as it is written: the program runs on");
    (child, stdout)
}

fn leaves_nothing(forkd: &Forkd, what: &str) {
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0, "{what}");
}

#[test]
fn run_gives_streams_and_the_exit_code_and_leaves_nothing() {
    let forkd = Forkd::new();
    streams_and_exit_code(&forkd);
    signals(&forkd);
    failures(&forkd);
    reader_that_has_seen_enough(&forkd);
}

fn streams_and_exit_code(forkd: &Forkd) {
    let script = "cat; echo told >&2; printf '\\377'; exit 7";
    let mut child = forkd
        .command(&["run", "tiny", "--timeout-secs", "20", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input: Vec<u8> = (0..200_000).flat_map(|number: u32| number.to_le_bytes()).collect();
    let mut stdin = child.stdin.take().unwrap();
    let sent = input.clone();
    let writing = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{errors}");
    assert!(output.stdout == [input, vec![0xFF]].concat(), "a byte is lost or another");
    assert!(errors.contains("tiny: boot") && errors.ends_with("told\n"), "{errors}");
    assert_eq!(forkd.json(&["snapshots"])[0]["tag"], "tiny", "it was built");
    leaves_nothing(forkd, "after the end");

    let answer = forkd.json(&["run", "tiny", "--no-stdin", "--", "cat", "/etc/hostname"]);
    assert!(answer["stdout"].as_str().unwrap().starts_with("sb-"), "{answer}");
    assert_eq!((&answer["exit_code"], &answer["timed_out"]), (&0.into(), &false.into()));
    leaves_nothing(forkd, "after --json");
}

fn signals(forkd: &Forkd) {
    let (mut child, _) =
        started(forkd, "trap 'exit 9' TERM; echo ready; while :; do sleep 1; done");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut child), Some(9), "the program's own answer to the signal");
    leaves_nothing(forkd, "after SIGTERM");

    let (mut child, mut stdout) =
        started(forkd, "trap 'echo again' INT; echo ready; while :; do sleep 1; done");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "again\n", "the first signal goes to the program");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(end_of(&mut child), Some(130), "the second one is for us");
    leaves_nothing(forkd, "after two interrupts");
}

fn failures(forkd: &Forkd) {
    let (errors, code) = forkd.refused(&["run", "tiny", "--", "no-such-program"]);
    assert!(errors.starts_with("error: ") && errors.contains("\nhint: "), "{errors}");
    assert_eq!(code, 127);
    leaves_nothing(forkd, "after a program that does not exist");
    let (errors, code) = forkd.refused(&["run", "no-such-name", "--", "true"]);
    assert!(errors.contains("no-such-name") && errors.contains("images are: "), "{errors}");
    assert_eq!(code, 125);
    let late = ["run", "tiny", "--no-stdin", "--timeout-secs", "1", "--", "sleep", "1000"];
    let (errors, code) = forkd.refused(&late);
    assert!(errors.contains("after 1 s") && code == 124, "{errors} {code}");
    let (errors, code) = forkd.refused(&["run", "tiny"]);
    assert!(errors.contains("terminal") && code == 125, "{errors}");
    leaves_nothing(forkd, "after failures");
}

fn reader_that_has_seen_enough(forkd: &Forkd) {
    let (mut child, stdout) = started(forkd, "echo ready; yes");
    drop(stdout);
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((end_of(&mut child), errors.as_str()), (Some(141), ""));
    leaves_nothing(forkd, "after a reader that went away");
    let kept = forkd.run(&["-q", "run", "tiny", "--keep", "--no-stdin", "--", "true"]);
    let id = String::from_utf8(kept.stderr).unwrap();
    assert_eq!(forkd.ok(&["exec", id.trim(), "--", "echo", "there"]), "there");
}
