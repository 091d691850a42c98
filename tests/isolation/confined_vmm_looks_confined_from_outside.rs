//! Goal: every thread of every VMM has a user of its own, no capability, a filter of system calls,
//! namespaces unlike the daemon's and its siblings', and no descriptor but its own, of each kind as
//! many as it needs; for as long as it lives.
//! Method: `/proc`, of the VMM of a template that boots, of fresh children, after a branch, after a
//! rollback, and after another daemon has taken them over.
//! Broken by: a thread that began before the filter, a descriptor that is inherited.

use std::time::{Duration, Instant};

use forkd_testkit::audit::{descriptors, golden_descriptors, violations};
use forkd_testkit::{Guest, Lab, SOON, block_on};
use forkd_types::{Isolation, SandboxId, SnapshotTag};

use crate::prisoner::pid;

/// Of all sandboxes; these have been branched since their daemon began to use them.
async fn all_hold(lab: &Lab, when: &str, branched: &[&SandboxId]) {
    let sandboxes = lab.engine.sandboxes();
    let pids: Vec<u32> = sandboxes.iter().filter_map(|each| each.pid).collect();
    assert!(pids.len() >= 2 && pids.len() == sandboxes.len(), "{when}");
    for (sandbox, pid) in sandboxes.iter().zip(&pids) {
        let mut others: Vec<u32> = pids.iter().copied().filter(|other| other != pid).collect();
        others.push(std::process::id());
        let found = violations(*pid, &others, Isolation::Full);
        assert!(found.is_empty(), "{when}, process {pid}: {found:#?}");
        let golden = golden_descriptors(branched.contains(&&sandbox.id));
        // It closes connections a little after the daemon.
        let begun = Instant::now();
        while descriptors(*pid) != golden {
            let open = descriptors(*pid);
            assert!(begun.elapsed() < SOON, "{when}, process {pid}: {open:#?}, not {golden:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A template, whose VMM is looked at while its guest boots.
async fn built_and_looked_at(lab: &Lab) -> SnapshotTag {
    let tag: SnapshotTag = "tiny-128".parse().unwrap();
    let looked = async {
        let begun = Instant::now();
        loop {
            // It is there before it is confined.
            if let [pid] = lab.vmm_pids()[..] {
                let found = violations(pid, &[std::process::id()], Isolation::Full);
                let (open, golden) = (descriptors(pid), golden_descriptors(false));
                if found.is_empty() && open == golden {
                    return;
                }
                assert!(begun.elapsed() < SOON, "{found:#?}, {open:#?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let (built, ()) = tokio::join!(lab.build(&tag, "tiny", 128), looked);
    built.unwrap();
    tag
}

#[test]
fn a_vmm_stays_confined_over_branch_rollback_and_another_daemon() {
    block_on(async {
        let first = Lab::with_config(&Lab::hot_directory(), |config| {
            config.limits.standby = 1;
        })
        .await;
        assert_eq!(first.engine.isolation(), Isolation::Full);
        let tag = built_and_looked_at(&first).await;
        let guest = first.one(&tag).await;
        first.wait_until("a VMM stands by", || first.engine.standby_pids().len() == 1).await;
        let [stood_by] = first.engine.standby_pids()[..] else { panic!("two stand by") };
        let sibling = first.one(&tag).await;
        assert_eq!(pid(&first, &sibling), stood_by);
        all_hold(&first, "after the start", &[]).await;
        let (branch, _children) = guest.branch_into(2).await;
        all_hold(&first, "after a branch", &[&guest.id]).await;
        let before = pid(&first, &guest);
        first.engine.roll_back_sandbox(&guest.id, &branch).await.unwrap();
        assert_ne!(pid(&first, &guest), before);
        all_hold(&first, "after a rollback", &[]).await;
        let config = first.config().clone();
        first.engine.shut_down(forkd_engine::AtShutDown::Leave).await;
        let directories = [&config.state_dir, &config.hot_dir, &config.run_dir];
        let second = Lab::in_directories(directories.map(|path| path.as_path()), |_| {}).await;
        all_hold(&second, "after another daemon has taken them over", &[]).await;
        let ids: Vec<SandboxId> = second.engine.sandboxes().into_iter().map(|one| one.id).collect();
        for id in &ids {
            let guest = Guest::new(&second, id.clone());
            assert_eq!(guest.sh("echo goes on").await, "goes on");
            guest.branch().await;
        }
        all_hold(&second, "after its branches", &ids.iter().collect::<Vec<_>>()).await;
        second.engine.shut_down(forkd_engine::AtShutDown::Remove).await;
    });
}
