//! Goal: a child has the memory and the processes of its source at the branch point and goes on
//! from there; so does the source.
//!
//! Method: a process counts in memory and adds a byte to a file for each step; each side's count
//! must be at least the one before the branch, and must grow. Breaks when the child boots anew, or
//! one side stands still.

use forkd_testkit::{Guest, Lab, block_on};

async fn count(guest: &Guest<'_>) -> u64 {
    guest.sh("wc -c < /tmp/count").await.trim().parse().unwrap()
}

#[test]
fn child_and_source_both_count_on_from_the_branch_point() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.tiny().await;
        source.spawn("while true; do echo -n x >> /tmp/count; sleep 0.005; done").await;
        source.sh("until test -s /tmp/count; do sleep 0.01; done").await;
        let before = count(&source).await;
        let (tag, children) = source.branch_into(1).await;
        let child = &children[0];
        let in_child = count(child).await;
        assert!(before > 0 && in_child >= before, "{before} before, {in_child} in the child");
        for (name, guest) in [("source", &source), ("child", child)] {
            let first = count(guest).await;
            let grows = format!("until test $(wc -c < /tmp/count) -gt {first}; do :; done");
            let grown = guest.try_sh(&grows).await;
            assert!(grown.is_ok_and(|it| it.code == 0), "the {name} stands still at {first}");
        }
        let report = lab.engine.snapshot(&tag).unwrap().branch.unwrap();
        let held = report.held_by_vmm.unwrap();
        assert!(held <= report.pause, "QEMU held the guest {held:?} of {:?}", report.pause);
    });
}
