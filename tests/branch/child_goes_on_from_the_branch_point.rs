//! Goal: a child has the memory and the processes of its source at the branch point and goes on from
//! there; so does the source.
//!
//! Method: a process counts in memory and writes the count to a file; each side's count must be at
//! least the one before the branch, and must grow. Breaks when the child boots anew, shares memory
//! with the source, or one side stands still.

use forkd_testkit::{Guest, Lab, block_on};

const COUNTER: &str =
    "i=0; while true; do i=$((i+1)); echo $i > /tmp/count; done > /dev/null 2>&1 &";

async fn count(guest: &Guest<'_>) -> u64 {
    // The file may be read between truncation and writing.
    let text = guest.sh("until test -s /tmp/count; do :; done; cat /tmp/count").await;
    text.parse().unwrap_or(0)
}

#[test]
fn child_and_source_both_count_on_from_the_branch_point() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.tiny().await;
        source.sh(COUNTER).await;
        source.sh("sleep 0.3").await;
        let before = count(&source).await;
        let (_, children) = source.branch_into(1).await;
        let child = &children[0];
        let in_child = count(child).await;
        println!("{:#?}", lab.engine.snapshots().last().unwrap());
        assert!(before > 0 && in_child >= before, "{before} before, {in_child} in the child");
        for (name, guest) in [("source", &source), ("child", child)] {
            let first = count(guest).await;
            guest.sh("sleep 0.3").await;
            let second = count(guest).await;
            assert!(second > first, "the {name} stands still at {first}");
        }
    });
}
