//! Goal: branches of two children of one snapshot, taken at the same moment, do not disturb each
//! other.
//!
//! Method: both are branched concurrently five times; each child must have its own source's latest
//! value. Breaks when anything of a branch is shared between sandboxes that must not be.

use forkd_testkit::{Lab, block_on};

#[test]
fn children_of_one_snapshot_branch_at_the_same_time_and_keep_their_own_state() {
    block_on(async {
        let lab = Lab::shared().await;
        let tag = lab.template("tiny", 128).await;
        let pair = lab.fork(&tag, 2).await;
        for round in 0..5 {
            for (name, guest) in ["a", "b"].iter().zip(&pair) {
                guest.sh(&format!("echo {name}{round} > /tmp/value")).await;
            }
            let (a, b) = tokio::join!(pair[0].branch_into(1), pair[1].branch_into(1));
            for (name, (_, mut children)) in [("a", a), ("b", b)] {
                let child = children.pop().unwrap();
                assert_eq!(child.sh("cat /tmp/value").await, format!("{name}{round}"));
                child.remove().await;
            }
        }
    });
}
