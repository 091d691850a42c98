//! Goal: who takes over a VMM cannot take memory, processors or space on the disk from others.
//! Method: the preload library, in the real VMM of a sandbox, takes as much as it gets, beside a
//! sandbox that works. The same is done without the limit, and there it is not bounded.
//! Broken by: a VMM that is in no cgroup or in one without limits, a file without a limit.

use std::fs;
use std::time::Duration;

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SandboxState;

use crate::prisoner::{Attempt, attempt, cgroup, lab, pid};

/// More than any file of the image `python` can come to need.
const LARGE_MIB: u64 = 64 << 10;
/// More than a VMM of 128 MiB may have.
const MUCH_MIB: u64 = 2 << 10;
const HOG_THREADS: u32 = 64;
/// For the kernel to share processors out in.
const SHARED_FOR: Duration = Duration::from_secs(3);

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
        // One thread that is always busy beside 64: each group gets the same.
        let shares = shares(neighbour, hog).await;
        assert!(shares > 0.5, "it got {shares:.2} of what the other got");
        // In one group with its neighbour and all others the same VMM takes nearly all.
        let everybody = cgroup(hog, "cpu").parent().unwrap().join("cgroup.procs");
        for pid in [hog, neighbour] {
            fs::write(&everybody, pid.to_string()).unwrap();
        }
        let shares = self::shares(neighbour, hog).await;
        assert!(shares < 0.25, "it got {shares:.2} of what the other got");
    });
}

/// Time of the processors that process `one` gets, as a part of that of `other`.
async fn shares(one: u32, other: u32) -> f64 {
    let used = || [one, other].map(ticks);
    let before = used();
    tokio::time::sleep(SHARED_FOR).await;
    let after = used();
    (after[0] - before[0]) / (after[1] - before[1])
}

/// Time of the processors that a process has used, in the kernel's ticks (`proc(5)`).
fn ticks(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum()
}
