//! Goal: `full`, `diff` and `live` differ in when and what they copy, not in the child; a `full`
//! snapshot depends on no other.
//!
//! Method: the same source is branched in each mode; the children's memory and disk are compared;
//! the full snapshot's chain has one layer. Breaks when a mode leaves out or adds pages.

use forkd_testkit::{Lab, block_on};
use forkd_types::BranchMode;

#[test]
fn children_of_all_three_modes_hold_the_same_state() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval("import random, zlib; random.seed(7); blob = random.randbytes(8 << 20)").await;
        source.sh("echo on-disk > /srv/file && sync").await;
        let digest = "zlib.crc32(blob)";
        let expected = source.eval(digest).await;
        // Diff and live build on the branch before them: one layer more each.
        for (mode, depth) in [(BranchMode::Full, 1), (BranchMode::Diff, 2), (BranchMode::Live, 3)] {
            let snapshot = source.try_branch(mode).await.unwrap();
            assert_eq!(snapshot.chain_depth, depth, "{mode}");
            let child = lab.one(&snapshot.tag).await;
            assert_eq!(child.eval(digest).await, expected, "{mode}");
            assert_eq!(child.sh("cat /srv/file").await, "on-disk", "{mode}");
            child.remove().await;
        }
    });
}
