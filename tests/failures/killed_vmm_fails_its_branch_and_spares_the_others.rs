//! Goal: a VMM that is killed, at any moment of a branch, gives that branch a clear error and its
//! sandbox the state `dead`; other sandboxes run on, and the snapshot is not usable.
//!
//! Method: the VMM is killed by its id at random moments after the request, so that over the rounds
//! the kill falls into different phases. Breaks when a wait has no end, or a half snapshot is
//! ready.

use std::time::{Duration, Instant};

use forkd_testkit::{Lab, block_on};
use forkd_types::{BranchMode, SandboxState, SnapshotStatus};

#[test]
fn killing_a_vmm_during_its_branch_ends_that_branch_only() {
    block_on(async {
        let lab = Lab::shared().await;
        let bystander = lab.tiny().await;
        let mut failed = 0;
        for round in 0..12u64 {
            let source = lab.tiny().await;
            source.sh("dd if=/dev/urandom of=/tmp/dirt bs=1M count=30 2>/dev/null").await;
            let pid = lab.engine.sandbox(&source.id).unwrap().pid.unwrap();
            let killer = async {
                tokio::time::sleep(Duration::from_millis(round * 2)).await;
                lab.kill(pid);
            };
            let begun = Instant::now();
            let (branched, ()) = tokio::join!(source.try_branch(BranchMode::Live), killer);
            assert!(begun.elapsed() < Duration::from_secs(20), "round {round} took too long");
            if let Err(error) = branched {
                failed += 1;
                let all = lab.engine.snapshots();
                let made = all.iter().rfind(|s| s.branched_from.as_ref() == Some(&source.id));
                assert_eq!(made.map(|s| s.status), Some(SnapshotStatus::Failed), "{error}");
                assert!(made.unwrap().error.is_some());
            }
            lab.wait_state(&source.id, SandboxState::Dead).await;
            let error = source.try_sh("true").await.unwrap_err().to_string();
            assert!(error.contains("dead"), "{error}");
            assert_eq!(bystander.sh("echo alive").await, "alive");
            source.remove().await;
        }
        assert!(failed >= 2, "the kill must hit branches, not only what follows ({failed})");
    });
}
