//! Goal: a `full` branch tells what a `diff` of the same state would have cost, and the snapshot is
//! no other for it.
//!
//! Method: the memory of two sandboxes is dirtied in the same way after a first branch, a part of
//! it with zeros; the figures of a full branch of one are compared with those of a diff of the
//! other. Breaks when the pages of the layers below are counted as dirty, or zeros as stored.

use forkd_testkit::{Lab, block_on};
use forkd_types::BranchMode;

#[test]
fn figures_of_a_full_branch_are_those_of_a_diff_of_the_same_state() {
    block_on(async {
        let lab = Lab::shared().await;
        let (source, other) = (lab.python().await, lab.python().await);
        for guest in [&source, &other] {
            guest.eval("import os, zlib; zeros = bytearray(b'x' * (24 << 20))").await;
            guest.branch().await;
            guest.eval("blob = os.urandom(16 << 20)").await;
            guest.eval("zeros[:] = bytes(24 << 20)").await;
        }
        let full = source.try_branch(BranchMode::Full).await.unwrap();
        let diff = other.try_branch(BranchMode::Diff).await.unwrap();
        let (full_report, diff_report) = (full.branch.unwrap(), diff.branch.unwrap());
        let near = |a: u64, b: u64| a.abs_diff(b) < a.max(b) / 10;
        let (stored, dirty) = (full_report.dirty_stored.get(), full_report.dirty.get());
        assert!(near(dirty, diff_report.dirty.get()), "{full_report:?} {diff_report:?}");
        assert!(near(stored, diff_report.stored.get()), "{full_report:?} {diff_report:?}");
        assert!(dirty - stored >= 20 << 20, "zeros are dirty, but not stored: {dirty} {stored}");
        assert!(full_report.stored.get() > stored + (16 << 20), "the layers below are not dirty");
        let pause = full_report.diff_pause.unwrap();
        assert!(pause < full_report.pause, "{pause:?} of {:?}", full_report.pause);
        assert_eq!(diff_report.diff_pause, Some(diff_report.pause));
        let child = lab.one(&full.tag).await;
        let digest = "zlib.crc32(blob), any(zeros)";
        assert_eq!(child.eval(digest).await, source.eval(digest).await);
    });
}
