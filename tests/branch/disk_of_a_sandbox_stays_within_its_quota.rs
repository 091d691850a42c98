//! Goal: what the overlays of one sandbox take on the host is bounded over all its branches, by the
//! kernel between them and by a refusal before them. The sandbox runs on, and a child of its last
//! snapshot has a quota of its own.
//!
//! Method: a guest with a small quota fills its disk and is branched in turns. The limit that the
//! kernel has for files of its VMM is read before and after. Breaks when each overlay has the whole
//! quota for itself, when inherited overlays count, or when the limit is that of the start.

use std::fs;

use forkd_engine::{EngineError, IsolationPolicy};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{BranchMode, ByteCount};

const QUOTA_MIB: u64 = 160;
/// More than half of it.
const FIRST_MIB: u64 = 90;
/// Nearly all of the rest.
const SECOND_MIB: u64 = 60;
/// A device state may have 64 MiB, and so may an overlay.
const THIRD_MIB: u64 = 40;

/// The largest file that the VMM of a sandbox may write.
fn file_max_mib(lab: &Lab, guest: &Guest<'_>) -> u64 {
    let pid = lab.engine.sandbox(&guest.id).unwrap().pid.unwrap();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 20
}

/// Whether a new file of that size gets to the disk. Of zeros a merge would store nothing.
async fn fill(guest: &Guest<'_>, name: &str, mebibytes: u64) -> bool {
    let write =
        format!("yes | dd of=/srv/{name} bs=1M count={mebibytes} iflag=fullblock conv=fsync 2>&1");
    guest.try_sh(&write).await.unwrap().code == 0
}

#[test]
fn branches_give_no_guest_more_of_the_hosts_disk_than_its_quota() {
    block_on(async {
        let lab = Lab::with_config(&Lab::hot_directory(), |config| {
            config.isolation = IsolationPolicy::Required;
            config.limits.each_sandbox.disk = Some(ByteCount::from_mib(QUOTA_MIB));
        })
        .await;
        let template = lab.template("python", 256).await;
        let guest = lab.one(&template).await;
        assert_eq!(file_max_mib(&lab, &guest), QUOTA_MIB);
        assert!(fill(&guest, "first", FIRST_MIB).await);
        let (first, _) = guest.branch_into(0).await;
        lab.wait_until("the rest is its limit", || {
            file_max_mib(&lab, &guest) <= QUOTA_MIB - FIRST_MIB
        })
        .await;
        assert!(fill(&guest, "second", SECOND_MIB).await);
        guest.try_branch(BranchMode::Diff).await.unwrap();
        assert!(fill(&guest, "third", THIRD_MIB).await);
        let refused = guest.try_branch(BranchMode::Diff).await.unwrap_err();
        assert!(matches!(refused, EngineError::DiskQuotaReached { .. }), "{refused}");
        assert!(!fill(&guest, "fourth", SECOND_MIB).await, "that is more than is left");
        assert_eq!(guest.sh("echo alive").await, "alive");
        let child = lab.one(&first).await;
        assert_eq!(file_max_mib(&lab, &child), QUOTA_MIB, "what it inherits is not its own");
        assert!(fill(&child, "own", FIRST_MIB).await);
        child.try_branch(BranchMode::Diff).await.unwrap();
    });
}
