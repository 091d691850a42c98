//! Goal: between the pause of a source and its resume, the daemon makes a handful of system calls,
//! whose order and kinds are known: four commands to the VMM, in three round trips, and what
//! protects memory. Nothing is opened, mapped, allocated, started or waited for besides.
//!
//! Method: the daemon's system calls are listed by `strace` while a sandbox with a disk is branched
//! live. A command is sent but for its last byte before the window, so the window begins where that
//! byte follows `stop`, and ends with the reply to `cont`. Breaks when a command, a round trip or
//! another call comes into the window.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::forkd::Forkd;
use crate::processes::wait_until;

/// In their order. With `blockdev-snapshot` on its way, the reply to the one before is awaited.
const COMMANDS: [&str; 4] = ["stop", "xen-save-devices-state", "blockdev-snapshot", "cont"];
/// Sent and answered: the answer to the second is awaited when the third is on its way.
const ROUND_TRIPS: &str = "sent answered sent sent answered sent answered";
/// What the window is made of. A command's byte is sent, the deadline of its reply is set, and the
/// reply is read. `ioctl` protects pages.
const CALLS: [&str; 4] = ["sendto", "setsockopt", "recvfrom", "ioctl"];
/// A reply comes after the events that its monitor has not been read for: before the branch, and
/// that of the pause. Each piece is read with a deadline of its own.
const PIECES_MAX: usize = 3;
/// Besides `ioctl`, of which there is one for each run of pages.
const CALLS_MAX: usize = COMMANDS.len() * (1 + 2 * PIECES_MAX);
const BRANCHES: usize = 5;

/// A system call as `strace` writes it, with its arguments as far as they are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call<'a> {
    thread: u32,
    name: &'a str,
    arguments: &'a str,
}

impl<'a> Call<'a> {
    /// Nothing for a line that ends a call which began on another.
    fn of(line: &'a str) -> Option<Self> {
        let (thread, rest) = line.split_once(' ')?;
        let (name, arguments) = rest.trim_start().split_once('(')?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name.then_some(Self { thread: thread.parse().ok()?, name, arguments })
    }

    fn descriptor(&self) -> &'a str {
        self.arguments.split(',').next().unwrap_or_default()
    }

    /// The command whose first bytes are sent.
    fn command(&self) -> Option<&'a str> {
        let (_, rest) = self.arguments.split_once("\\\"execute\\\":\\\"")?;
        let end = rest.find(|letter: char| !letter.is_ascii_alphabetic() && letter != '-');
        (self.name == "sendto").then(|| &rest[..end.unwrap_or(rest.len())])
    }

    /// Whether the last byte of a command is sent.
    fn completes(&self) -> bool {
        self.name == "sendto" && self.arguments.contains("\"}\", 1,")
    }
}

/// The calls of a thread from the last byte of `stop` to the reply to `cont`, and its commands.
#[derive(Debug, Default, PartialEq, Eq)]
struct Window<'a> {
    commands: Vec<&'a str>,
    calls: Vec<&'a str>,
}

/// All windows. Commands may have been loaded by another thread than completes them.
fn windows_in(text: &str) -> Vec<Window<'_>> {
    let (mut loaded, mut open) = (BTreeMap::new(), BTreeMap::<u32, Window<'_>>::new());
    let mut windows = Vec::new();
    for call in text.lines().filter_map(Call::of) {
        let mut completed = None;
        if let Some(command) = call.command() {
            loaded.insert(call.descriptor(), command);
        } else if call.completes() {
            completed = loaded.remove(call.descriptor());
        }
        if completed == Some("stop") {
            open.insert(call.thread, Window::default());
        }
        let Some(window) = open.get_mut(&call.thread) else { continue };
        window.commands.extend(completed);
        window.calls.push(call.name);
        let is_over = window.commands.last() == Some(&"cont") && call.name == "recvfrom";
        windows.extend(is_over.then(|| open.remove(&call.thread)).flatten());
    }
    windows
}

/// Lists the system calls of all threads of a process, until it is told to end.
struct Listed(Child);

impl Listed {
    fn of(process: u32, list: &Path) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-s", "120", "-o"]).arg(list).arg("-p").arg(process.to_string());
        let child = strace.spawn().expect("strace is installed");
        wait_until("all threads are followed", || {
            let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
            threads.map(|thread| thread.path().join("status")).all(|status| {
                let status = fs::read_to_string(status).unwrap_or_default();
                status.lines().any(|line| line == format!("TracerPid:\t{}", child.id()))
            })
        });
        Self(child)
    }

    fn end(mut self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn pause_window_of_a_branch_is_four_commands_in_three_round_trips_and_nothing_else() {
    let forkd = Forkd::new();
    forkd.template("python", "python", 256);
    let source = forkd.ok(&["fork", "python"]);
    let branch = |tag: &str| forkd.ok(&["-q", "branch", &source, "--tag", tag]);
    let list = forkd.home().join("calls");
    let listed = Listed::of(forkd.daemon_pid(), &list);
    for number in 0..BRANCHES {
        forkd.ok(&["eval", &source, "blob = bytearray(1 << 20)"]);
        branch(&format!("b{number}"));
    }
    listed.end();
    let text = fs::read_to_string(list).unwrap();
    let windows = windows_in(&text);
    assert_eq!(windows.len(), BRANCHES, "each branch has a window");
    for Window { commands, calls } in windows {
        assert_eq!(commands, COMMANDS, "{calls:?}");
        let strange = calls.iter().find(|name| !CALLS.contains(name));
        assert_eq!(strange, None, "in the window: {calls:?}");
        let count = calls.iter().filter(|name| **name != "ioctl").count();
        assert!(count <= CALLS_MAX, "{count} calls, not {CALLS_MAX}: {calls:?}");
        assert_eq!(round_trips(&calls), ROUND_TRIPS, "{calls:?}");
    }
}

/// What was sent and what answered, in order.
fn round_trips(calls: &[&str]) -> String {
    let mut trips: Vec<_> = calls
        .iter()
        .filter_map(|name| match *name {
            "sendto" => Some("sent"),
            "recvfrom" => Some("answered"),
            _ => None,
        })
        .collect();
    trips.dedup_by(|next, last| *next == "answered" && *last == "answered");
    trips.join(" ")
}

const LIST: &str = "\
7  sendto(49, \"{\\\"execute\\\":\\\"stop\\\"\", 17, MSG_NOSIGNAL, NULL, 0 <unfinished ...>
8  futex(0x1, FUTEX_WAIT) = 0
7  <... sendto resumed>) = 17
7  sendto(52, \"{\\\"execute\\\":\\\"cont\\\"\", 17, MSG_NOSIGNAL, NULL, 0) = 17
7  ioctl(9, X) = 0
7  sendto(49, \"}\", 1, MSG_NOSIGNAL, NULL, 0) = 1
7  recvfrom(49, \"..\", 4096, 0, NULL, NULL) = 180
7  open(\"/x\", O_RDONLY) = 3
7  sendto(52, \"}\", 1, MSG_NOSIGNAL, NULL, 0) = 1
7  recvfrom(52, <unfinished ...>
7  close(3) = 0
";

#[test]
fn a_window_is_from_the_last_byte_of_stop_to_the_reply_to_cont() {
    let calls = vec!["sendto", "recvfrom", "open", "sendto", "recvfrom"];
    assert_eq!(windows_in(LIST), [Window { commands: vec!["stop", "cont"], calls }]);
}
