//! Goal: a process beyond the limit of its cgroup is ended, the group tells it from any
//! other end, and no group stays that nobody uses.
//! Method: the kernel's groups, with a program in place of a VMM that keeps what it reads; here,
//! and in a guest, whose groups are of version 2 whatever the host has.
//! Broken by: a limit that is not set, a process that is charged elsewhere, a count that this
//! kernel does not keep, a sweep that takes too much.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use forkd_testkit::{Lab, block_on};
use forkd_types::ByteCount;
use forkd_vmm::{MemoryCgroup, MemoryCgroups, MemoryLimit, limit_was_reached, try_memory_limit};

const LIMIT: ByteCount = ByteCount::from_mib(16);

fn groups(name: &str) -> MemoryCgroups {
    let found = MemoryCgroups::find(&format!("test-{}-{name}", std::process::id()));
    found.expect("the VM tier needs root and cgroups that it can write")
}

fn make(group: PathBuf) -> MemoryCgroup {
    MemoryCgroup::make(&MemoryLimit { bytes: LIMIT, cgroup: group }).unwrap()
}

/// How a program in the group ended that wanted so much memory.
fn want(group: &MemoryCgroup, bytes: ByteCount) -> ExitStatus {
    // It keeps a line until it is complete.
    let mut command = Command::new("tail");
    forkd_sys::confine::enter_cgroup(&mut command, group.entrance().unwrap());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // The pipe breaks when it is ended.
    input.write_all(&vec![0; bytes.as_usize()]).ok();
    drop(input);
    child.wait().unwrap()
}

#[test]
fn a_process_beyond_its_limit_is_ended_and_its_group_says_so_and_goes() {
    let path = groups("limit").cgroup_of("sb-a");
    let group = make(path.clone());
    assert!(want(&group, ByteCount::from_mib(4)).success());
    assert_eq!(group.limit_reached(), None);
    assert!(!want(&group, ByteCount::from_mib(64)).success());
    assert_eq!(group.limit_reached(), Some(LIMIT));
    assert!(limit_was_reached(&path));
    drop(group);
    assert!(!path.exists() && !limit_was_reached(&path));
}

#[test]
fn strays_are_swept_and_groups_of_others_and_those_in_use_are_not() {
    let ours = groups("sweep");
    let others = MemoryCgroups::at(ours.base().to_owned(), &format!("{}x", std::process::id()));
    let all = [ours.cgroup_of("sb-a"), ours.cgroup_of("sb-b"), others.cgroup_of("sb-a")];
    for group in all.clone() {
        make(group).release();
    }
    let there = || all.each_ref().map(|group| group.exists());
    ours.sweep(&all[1..2]);
    assert_eq!(there(), [false, true, true]);
    ours.sweep(&[]);
    others.sweep(&[]);
    assert_eq!(there(), [false; 3]);
}

#[test]
fn trying_it_out_leaves_nothing() {
    let groups = groups("probe");
    try_memory_limit(&groups).unwrap();
    let names = std::fs::read_dir(groups.base()).unwrap().flatten();
    let ours = format!("forkd-test-{}-probe-", std::process::id());
    let left = names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours));
    assert_eq!(left.count(), 0);
}

/// This program without what only a debugger needs.
fn stripped_self() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let stripped = directory.path().join("tests");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(std::env::current_exe().unwrap());
    assert!(strip.status().unwrap().success());
    std::fs::read(stripped).unwrap()
}

#[test]
fn version_two_does_the_same_in_a_guest() {
    block_on(async {
        let lab = Lab::shared().await;
        let guest = lab.python().await;
        guest.write("/srv/tests", &stripped_self()).await;
        let controllers = guest.sh("cat /sys/fs/cgroup/cgroup.controllers").await;
        assert!(controllers.contains("memory"), "{controllers}");
        let run = "chmod +x /srv/tests; cd /srv; \
            ./tests control_groups_limit_and_go --skip in_a_guest --test-threads=1; \
            find /sys/fs/cgroup -name 'forkd*'";
        let said = guest.sh(run).await;
        assert!(said.contains("ok. 3 passed; 0 failed"), "{said}");
        assert!(!said.contains("/forkd"), "a group is left: {said}");
        guest.remove().await;
    });
}
