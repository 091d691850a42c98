//! Goal: a process beyond the memory of its cgroup is ended, the group tells it from any other end,
//! threads and processors are bounded too, and no group stays that nobody uses.
//! Method: the kernel's groups, with a program in place of a VMM that keeps what it reads; here,
//! and in a guest, whose groups are of version 2 whatever the host has.
//! Broken by: a limit that is not set, a process that is charged elsewhere, a count that this
//! kernel does not keep, a sweep that takes too much.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use forkd_testkit::{Lab, block_on};
use forkd_types::ByteCount;
use forkd_vmm::{Cgroup, CgroupLimits, Cgroups, Controller, VmmCgroup, sweep_cgroups, try_cgroups};

const MEMORY: ByteCount = ByteCount::from_mib(16);
const LIMITS: CgroupLimits =
    CgroupLimits { memory: Some(MEMORY), millicpus: Some(500), threads: Some(8) };

fn name(test: &str) -> String {
    format!("test-{}-{test}", std::process::id())
}

/// The cgroups of the VM `vm` of the test `test`.
fn plan(test: &str, vm: &str) -> VmmCgroup {
    let cgroups = Cgroups::find(&name(test));
    for controller in [Controller::Memory, Controller::Cpu, Controller::Pids] {
        cgroups.require(controller).expect("the VM tier needs root and cgroups that it can write");
    }
    cgroups.of(vm, LIMITS).unwrap()
}

fn paths(plan: &VmmCgroup) -> Vec<PathBuf> {
    plan.paths().map(PathBuf::from).collect()
}

fn enter(cgroup: &Cgroup, program: &str) -> Command {
    let mut command = Command::new(program);
    for entrance in cgroup.entrances().unwrap() {
        forkd_sys::confine::enter_cgroup(&mut command, entrance);
    }
    command
}

/// How a program in the group ended that wanted so much memory.
fn want(cgroup: &Cgroup, bytes: ByteCount) -> ExitStatus {
    // It keeps a line until it is complete.
    let mut command = enter(cgroup, "tail");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // The pipe breaks when it is ended.
    input.write_all(&vec![0; bytes.as_usize()]).ok();
    drop(input);
    child.wait().unwrap()
}

#[test]
fn a_process_beyond_its_memory_is_ended_and_its_group_says_so_and_goes() {
    let plan = plan("limit", "sb-a");
    let cgroup = Cgroup::make(&plan).unwrap();
    assert!(want(&cgroup, ByteCount::from_mib(4)).success());
    assert_eq!(cgroup.memory_limit_reached(), None);
    assert!(!want(&cgroup, ByteCount::from_mib(64)).success());
    assert_eq!(cgroup.memory_limit_reached(), Some(MEMORY));
    drop(cgroup);
    assert!(paths(&plan).iter().all(|path| !path.exists()));
    assert_eq!(plan.memory_limit_reached(), None);
}

#[test]
fn a_program_cannot_have_more_threads_than_its_group() {
    let plan = plan("threads", "sb-a");
    let cgroup = Cgroup::make(&plan).unwrap();
    let mut many = enter(&cgroup, "sh");
    let output = many.args(["-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 3 & done; wait"]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("fork"), "it had nine children and a shell: {said}");
}

#[test]
fn programs_cannot_have_more_of_the_processors_than_their_group() {
    let plan = plan("processors", "sb-a");
    let cgroup = Cgroup::make(&plan).unwrap();
    // Time that the group used while it wanted two processors, beside time that passed.
    let begun = std::time::Instant::now();
    let busy = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done";
    let two = format!("({busy}) & ({busy}) & wait; times");
    let output = enter(&cgroup, "sh").args(["-c", &two]).output().unwrap();
    let passed = begun.elapsed().as_secs_f64();
    let used = children_seconds(&String::from_utf8(output.stdout).unwrap());
    // Half a processor, and what a group has to spare at the beginning and the end.
    assert!(used < 0.5 * passed + 0.3, "{used} s of {passed} s");
}

/// What `times` of the shell says of its children: minutes and seconds, in the user's code and in
/// the kernel's.
fn children_seconds(times: &str) -> f64 {
    let last = times.lines().last().unwrap_or_else(|| panic!("{times}"));
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    last.split_whitespace().map(|time| seconds(time).unwrap_or_else(|| panic!("{times}"))).sum()
}

#[test]
fn strays_are_swept_and_groups_of_others_and_those_in_use_are_not() {
    let plans = [plan("sweep", "sb-a"), plan("sweep", "sb-b"), plan("sweepx", "sb-a")];
    for plan in &plans {
        Cgroup::make(plan).unwrap().release();
    }
    let there = || plans.each_ref().map(|plan| paths(plan).iter().all(|path| path.exists()));
    let sweep = |test: &str, keep: &[PathBuf]| {
        for base in Cgroups::find(&name(test)).bases() {
            sweep_cgroups(base, &name(test), keep);
        }
    };
    sweep("sweep", &paths(&plans[1]));
    assert_eq!(there(), [false, true, true]);
    sweep("sweep", &[]);
    sweep("sweepx", &[]);
    assert_eq!(there(), [false; 3]);
}

#[test]
fn trying_it_out_leaves_nothing() {
    let cgroups = Cgroups::find(&name("probe"));
    try_cgroups(&cgroups).unwrap();
    let ours = format!("forkd-{}-", name("probe"));
    for base in cgroups.bases() {
        let names = std::fs::read_dir(base).unwrap().flatten();
        let left = names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours));
        assert_eq!(left.count(), 0, "{}", base.display());
    }
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
        assert!(said.contains("ok. 5 passed; 0 failed"), "{said}");
        assert!(!said.contains("/forkd"), "a group is left: {said}");
        guest.remove().await;
    });
}
