//! Goal: after a daemon was killed, the next one ends the VMs that it left, removes their files,
//! and the snapshots are as usable as before.
//!
//! Method: the daemon is killed by its id while sandboxes run; the next command starts another.
//! Breaks when a VMM, a directory or a row survives without an owner.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::forkd::Forkd;

fn runs(pid: u64) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie that nobody has waited for yet has ended.
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn the_next_daemon_ends_orphaned_vms_and_keeps_the_snapshots() {
    let forkd = Forkd::new();
    forkd.ok(&["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "128"]);
    let source = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    forkd.ok(&["exec", &source, "--", "/bin/sh", "-c", "echo kept > /tmp/file"]);
    forkd.ok(&["branch", &source, "--tag", "b"]);
    let sandboxes = forkd.json(&["ls"]);
    let vmm = sandboxes[0]["pid"].as_u64().unwrap();
    assert!(runs(vmm));

    let daemon = i32::try_from(forkd.daemon_pid()).ok().and_then(Pid::from_raw).unwrap();
    rustix::process::kill_process(daemon, Signal::KILL).unwrap();
    let begun = Instant::now();
    while runs(u64::from(daemon.as_raw_nonzero().get().unsigned_abs())) {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert!(runs(vmm), "a VM outlives its daemon");

    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0);
    while runs(vmm) {
        assert!(begun.elapsed() < Duration::from_secs(10), "the VM was not ended");
    }
    assert!(!Path::new(forkd.home()).join("run").join(&source).exists());
    let child = forkd.json(&["fork", "b"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(forkd.ok(&["exec", &child, "--", "cat", "/tmp/file"]), "kept");
}
