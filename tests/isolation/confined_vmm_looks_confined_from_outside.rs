//! Goal: every thread of every VMM has a user of its own, no capability, a filter of system calls,
//! namespaces unlike the daemon's and its siblings', and no descriptor but its own; for as long as
//! it lives.
//! Method: `/proc`, of fresh children, after a branch, after a rollback, and after another daemon
//! has taken them over.
//! Broken by: a thread that began before the filter, a descriptor that is inherited.

use forkd_testkit::{Lab, block_on};
use forkd_types::Isolation;

use crate::audit::violations;
use crate::prisoner::pid;

fn all_hold(lab: &Lab, when: &str) {
    let pids: Vec<u32> = lab.engine.sandboxes().iter().filter_map(|each| each.pid).collect();
    assert!(pids.len() >= 2, "{when}");
    for pid in &pids {
        let mut others: Vec<u32> = pids.iter().copied().filter(|other| other != pid).collect();
        others.push(std::process::id());
        let found = violations(*pid, &others);
        assert!(found.is_empty(), "{when}, process {pid}: {found:#?}");
    }
}

#[test]
fn a_vmm_stays_confined_over_branch_rollback_and_another_daemon() {
    block_on(async {
        let first = Lab::with_config(&Lab::hot_directory(), |config| {
            config.limits.standby = 1;
        })
        .await;
        assert_eq!(first.engine.isolation(), Isolation::Full);
        let tag = first.template("tiny", 128).await;
        let guest = first.one(&tag).await;
        first.wait_until("a VMM stands by", || first.engine.standby_pids().len() == 1).await;
        let [stood_by] = first.engine.standby_pids()[..] else { panic!("two stand by") };
        let sibling = first.one(&tag).await;
        assert_eq!(pid(&first, &sibling), stood_by);
        all_hold(&first, "after the start");
        let (branch, _children) = guest.branch_into(2).await;
        all_hold(&first, "after a branch");
        let before = pid(&first, &guest);
        first.engine.roll_back_sandbox(&guest.id, &branch).await.unwrap();
        assert_ne!(pid(&first, &guest), before);
        all_hold(&first, "after a rollback");
        let config = first.config().clone();
        first.engine.shut_down(forkd_engine::AtShutDown::Leave).await;
        let directories = [&config.state_dir, &config.hot_dir, &config.run_dir];
        let second = Lab::in_directories(directories.map(|path| path.as_path()), None).await;
        all_hold(&second, "after another daemon has taken them over");
        for sandbox in second.engine.sandboxes() {
            let guest = forkd_testkit::Guest::new(&second, sandbox.id);
            assert_eq!(guest.sh("echo goes on").await, "goes on");
            guest.branch().await;
        }
        all_hold(&second, "after its branches");
        second.engine.shut_down(forkd_engine::AtShutDown::Remove).await;
    });
}
