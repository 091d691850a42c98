//! Goal: sandboxes run on when their daemon is killed or told to end, and the next daemon takes
//! them over: memory, disk and programs of the guest are as they were, and it can be branched. One
//! whose VMM has ended meanwhile is reported dead. A VM that was never handed out is ended.
//!
//! Method: the daemon is killed by its id, or stopped, while a guest counts or boots; the next
//! command starts another daemon. Breaks when a VMM ends with its daemon, is forgotten, or cannot
//! be controlled.

use std::time::{Duration, Instant};

use crate::forkd::Forkd;
use crate::processes::{kill_and_wait, runs};

const SOON: Duration = Duration::from_secs(120);

fn sh(forkd: &Forkd, sandbox: &str, command: &str) -> String {
    forkd.ok(&["exec", sandbox, "--", "/bin/sh", "-c", command])
}

/// The console of the sandbox has `text`, or has it soon.
fn wait_for_console(forkd: &Forkd, sandbox: &str, text: &str) {
    let begun = Instant::now();
    while !forkd.ok(&["logs", sandbox]).contains(text) {
        assert!(begun.elapsed() < SOON, "`{text}` is not on the console");
    }
}

/// The sandbox runs in the VMM `pid`, has all that was put there, counts on, and can be branched.
fn check_alive(forkd: &Forkd, sandbox: &str, pid: u64, mode: &str) {
    let shown = forkd.json(&["ls"]);
    assert_eq!(shown[0]["id"], sandbox);
    assert_eq!(shown[0]["state"], "running");
    assert_eq!(shown[0]["pid"], pid);
    let content = "cat /tmp/memory /srv/disk";
    assert_eq!(sh(forkd, sandbox, content), "in memory\non disk");
    let count = || sh(forkd, sandbox, "cat /tmp/n").parse::<u64>().unwrap_or_default();
    let (before, begun) = (count(), Instant::now());
    while count() <= before {
        assert!(begun.elapsed() < SOON, "the guest stands still");
    }
    check_process(forkd, sandbox, false);
    let branch = forkd.json(&["branch", sandbox, "--mode", mode, "-n", "1"]);
    let child = branch["children"][0]["sandbox"]["id"].as_str().unwrap_or_else(|| {
        panic!("a child in {branch}");
    });
    assert_eq!(sh(forkd, child, content), "in memory\non disk");
    check_process(forkd, child, true);
    forkd.ok(&["rm", child]);
}

/// The background process is there, takes input and answers.
fn check_process(forkd: &Forkd, sandbox: &str, inherited: bool) {
    let processes = forkd.json(&["processes", sandbox]);
    let process = &processes[0];
    assert_eq!((&process["state"], &process["inherited"]), (&"running".into(), &inherited.into()));
    let id = process["id"].as_str().unwrap();
    forkd.ok(&["process", "input", sandbox, id, "a word"]);
    let begun = Instant::now();
    while !forkd.ok(&["process", "logs", sandbox, id]).trim_end().ends_with("heard a word") {
        assert!(begun.elapsed() < SOON, "the process does not answer");
    }
}

#[test]
fn the_next_daemon_takes_over_what_runs_and_reports_what_is_dead() {
    let forkd = Forkd::new();
    forkd.template("python", "t", 256);
    let sandbox = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    let pid = forkd.json(&["ls"])[0]["pid"].as_u64().unwrap();
    let begin = "echo in memory > /tmp/memory; mkdir -p /srv; echo on disk > /srv/disk; \
        setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.02; done' \
        < /dev/null > /dev/null 2>&1 &";
    sh(&forkd, &sandbox, begin);
    let hears = "while read line; do echo heard $line; done";
    forkd.ok(&["process", "start", &sandbox, "--stdin", "--", "sh", "-c", hears]);
    forkd.ok(&["branch", &sandbox, "--tag", "before"]);
    // It is counted a moment after it is answered.
    let begun = Instant::now();
    while forkd.json(&["ls"])[0]["branch_count"] != 1 {
        assert!(begun.elapsed() < SOON, "the branch is not counted");
    }

    sh(&forkd, &sandbox, "echo said to the first > /dev/console");
    wait_for_console(&forkd, &sandbox, "said to the first");
    kill_and_wait(u64::from(forkd.daemon_pid()));
    assert!(runs(pid), "the VM ended with its daemon");
    check_alive(&forkd, &sandbox, pid, "live");
    sh(&forkd, &sandbox, "echo said to the second > /dev/console");
    wait_for_console(&forkd, &sandbox, "said to the second");
    wait_for_console(&forkd, &sandbox, "said to the first");
    assert_eq!(forkd.json(&["ls"])[0]["branch_count"], 2, "branches before count too");

    let stopped = forkd.json(&["stop"]);
    assert_eq!(stopped["sandboxes_left"], 1);
    assert!(runs(pid), "the VM ended with its daemon");
    check_alive(&forkd, &sandbox, pid, "diff");

    kill_and_wait(u64::from(forkd.daemon_pid()));
    kill_and_wait(pid);
    let shown = forkd.json(&["ls"]);
    assert_eq!(shown[0]["state"], "dead");
    let error = shown[0]["error"].as_str().unwrap_or_default();
    assert!(error.contains("ended while no daemon ran"), "{error}");
    let (error, _) = forkd.refused(&["exec", &sandbox, "--", "true"]);
    assert!(error.contains("is dead"), "{error}");
    forkd.ok(&["rm", &sandbox]);
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0);
    assert!(!forkd.home().join("run").join(&sandbox).exists());
    let child = forkd.json(&["fork", "before"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sh(&forkd, &child, "cat /srv/disk"), "on disk");
    check_process(&forkd, &child, true);
}

/// The VMMs whose directories are below `home`.
fn vmms_of(forkd: &Forkd) -> Vec<u64> {
    let home = forkd.home().join("run/sb-").display().to_string();
    let is_vmm = |pid: &u64| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&home) && runs(*pid)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_vmm).collect()
}

const BUILD: [&str; 7] = ["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "128"];

#[test]
fn a_vm_that_was_booting_when_the_daemon_was_killed_is_ended() {
    let forkd = Forkd::new();
    forkd.ok(&["ls"]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| forkd.refused(&BUILD));
        while vmms_of(&forkd).is_empty() {
            assert!(begun.elapsed() < SOON, "no VM boots");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_and_wait(u64::from(forkd.daemon_pid()));
        client.join().unwrap();
    });
    assert_eq!(vmms_of(&forkd).len(), 1, "it outlives its daemon");
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0);
    while !vmms_of(&forkd).is_empty() {
        assert!(begun.elapsed() < SOON, "the VM was not ended");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(forkd.json(&["snapshots"])[0]["status"], "failed");
}
