//! Goal: who takes over a VMM cannot take memory, processors or space on the disk from others.
//! Method: the preload library, in the real VMM of a sandbox, takes as much as it gets, beside a
//! sandbox that works. The same is done without the limit, and there it is not bounded.
//! The processor: what a neighbour gets while the other VMM is stopped and while it takes what it
//! can, in turns. What else runs on the host takes from both. So a neighbour must get 80 % of what
//! it gets alone, or of half of what the host leaves to the two, whichever is less: where nothing
//! else runs, that is 80 % of what it gets alone.
//! Broken by: a VMM that is in no cgroup or in one without limits, a file without a limit.

use std::fs;
use std::time::Duration;

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SandboxState;
use rustix::process::{Pid, Signal};

use crate::prisoner::{Attempt, attempt, cgroup, lab, pid};

/// More than any file of the image `python` can come to need.
const LARGE_MIB: u64 = 64 << 10;
/// More than a VMM of 128 MiB may have.
const MUCH_MIB: u64 = 1 << 10;
const HOG_THREADS: u32 = 64;
/// For the kernel to share processors out in.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// What a neighbour keeps.
const KEPT_MIN: f64 = 0.8;
/// What it keeps at most in one group with the other.
const KEPT_WITHOUT_MAX: f64 = 0.4;
/// Turns of one measurement; odd, for a median.
const TURNS: usize = 5;
/// Turns until a measurement must say what it must.
const TURNS_MAX: usize = 25;

#[test]
fn a_vmm_that_was_taken_over_fills_neither_the_disk_nor_the_hot_directory() {
    block_on(async {
        let confined = lab(IsolationPolicy::Required, None).await;
        let tag = confined.template("python", 256).await;
        let guest = confined.one(&tag).await;
        let overlays = attempt(&confined, &guest, "list", "/disk/overlays");
        let Attempt::Worked(overlays) = overlays else { panic!("{overlays:?}") };
        for file in overlays.split(' ').map(|name| format!("/disk/overlays/{name}")) {
            large_file(&confined, &guest, &file, false);
        }
        large_file(&confined, &guest, "/ram", false);
        assert_eq!(guest.sh("echo goes on").await, "goes on");

        let open = lab(IsolationPolicy::None, None).await;
        let tag = open.template("python", 256).await;
        let guest = open.one(&tag).await;
        let overlays = fs::read_dir(open.config().state_dir.join("overlays")).unwrap();
        let overlay = overlays.flatten().next().unwrap().path();
        large_file(&open, &guest, &overlay.to_string_lossy(), true);
    });
}

/// Tries to make a file large, of which only the last byte takes space.
fn large_file(lab: &Lab, guest: &Guest<'_>, path: &str, must_work: bool) {
    let attempt = attempt(lab, guest, "extend", &format!("{path} {LARGE_MIB}"));
    let as_expected = match &attempt {
        Attempt::Worked(_) => must_work,
        // Frozen overlays cannot be written at all.
        Attempt::Refused(why) => {
            !must_work && (why.contains("too large") || why.contains("denied"))
        }
        Attempt::Ended => false,
    };
    assert!(as_expected, "{path}: {attempt:?}");
}

#[test]
fn a_vmm_that_was_taken_over_takes_no_more_memory_than_its_limit() {
    block_on(async {
        let lab = lab(IsolationPolicy::Required, None).await;
        let tag = lab.template("tiny", 128).await;
        let (guest, sibling) = (lab.one(&tag).await, lab.one(&tag).await);
        let limit = lab.engine.sandbox(&guest.id).unwrap().limits.memory.unwrap();
        assert!(limit.get() >> 20 < MUCH_MIB, "{limit}");
        assert_eq!(attempt(&lab, &guest, "take_memory", &MUCH_MIB.to_string()), Attempt::Ended);
        lab.wait_state(&guest.id, SandboxState::Dead).await;
        assert!(lab.engine.sandbox(&guest.id).unwrap().memory_limit_reached);
        assert_eq!(sibling.sh("echo unharmed").await, "unharmed");

        // The same in a group whose limit is taken away.
        let group = cgroup(pid(&lab, &sibling), "memory");
        for (file, unlimited) in [
            ("memory.memsw.limit_in_bytes", "-1"),
            ("memory.limit_in_bytes", "-1"),
            ("memory.max", "max"),
        ] {
            if group.join(file).exists() {
                fs::write(group.join(file), unlimited).unwrap();
            }
        }
        let taken = attempt(&lab, &sibling, "take_memory", &MUCH_MIB.to_string());
        assert!(matches!(taken, Attempt::Worked(_)), "{taken:?}");
        assert_eq!(sibling.sh("echo goes on").await, "goes on");
    });
}

#[test]
fn a_vmm_that_was_taken_over_leaves_a_neighbour_its_processor() {
    block_on(async {
        let lab = lab(IsolationPolicy::Required, None).await;
        let tag = lab.template("tiny", 128).await;
        let (hog, neighbour) = (lab.one(&tag).await, lab.one(&tag).await);
        let spins = attempt(&lab, &hog, "spin", &HOG_THREADS.to_string());
        assert!(matches!(spins, Attempt::Worked(_)), "{spins:?}");
        neighbour.spawn("while :; do :; done").await;
        let (hog, neighbour) = (pid(&lab, &hog), pid(&lab, &neighbour));
        let turn = || turn(neighbour, hog);
        let kept = turns_until(turn, |kept| kept >= KEPT_MIN).await;
        assert!(median(&kept) >= KEPT_MIN, "it kept {kept:.2?}");
        // In one group with its neighbour and all others the same VMM takes nearly all.
        let everybody = cgroup(hog, "cpu").parent().unwrap().join("cgroup.procs");
        for pid in [hog, neighbour] {
            fs::write(&everybody, pid.to_string()).unwrap();
        }
        let kept = turns_until(turn, |kept| kept < KEPT_WITHOUT_MAX).await;
        assert!(median(&kept) < KEPT_WITHOUT_MAX, "in one group it kept {kept:.2?}");
    });
}

/// Some turns, sorted; more, until their median is as it must be.
async fn turns_until<T: Future<Output = f64>>(
    turn: impl Fn() -> T,
    must_be: impl Fn(f64) -> bool,
) -> Vec<f64> {
    let mut kept = Vec::new();
    loop {
        kept.push(turn().await);
        kept.sort_by(f64::total_cmp);
        let is_enough = kept.len() >= TURNS && kept.len() % 2 == 1;
        if is_enough && (must_be(median(&kept)) || kept.len() >= TURNS_MAX) {
            return kept;
        }
    }
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// What `neighbour` gets beside `hog`, as a part of what it gets while `hog` is stopped, or of half
/// of what the host leaves to the two, if that is less.
async fn turn(neighbour: u32, hog: u32) -> f64 {
    signal(hog, Signal::STOP);
    let (alone, _) = used(neighbour, hog).await;
    signal(hog, Signal::CONT);
    let (beside, left) = used(neighbour, hog).await;
    beside / alone.min(left / 2.0)
}

/// Time of the processors for a while: what `one` used, and what was left to it and `other`.
async fn used(one: u32, other: u32) -> (f64, f64) {
    let look = || [ticks(one), ticks(other), idle_ticks()];
    let before = look();
    tokio::time::sleep(SHARED_FOR).await;
    let after = look();
    let [one, other, idle] = [0, 1, 2].map(|which| after[which] - before[which]);
    (one, one + other + idle)
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Time of the processors that nobody has used, in the kernel's ticks.
fn idle_ticks() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().unwrap().split_whitespace();
    all.skip(4).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum()
}

/// Time of the processors that a process has used, in the kernel's ticks (`proc(5)`).
fn ticks(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum()
}
