//! Goal: branches are right on kernels and hosts that lack what the fast path uses; where a mode is
//! not possible at all it is refused, with the reason and the remedy, and the other modes work.
//!
//! Method: labs whose captures are forbidden to use one feature or several; a source with a
//! writer is branched twice in every mode, and each child's writer checks its memory against its
//! registers. Breaks when a fallback finds too few dirty pages or leaves pages protected.

use forkd_engine::{EngineError, HostFeatures};
use forkd_testkit::{Guest, Lab, SOON, block_on};
use forkd_types::BranchMode;

/// A thread writes rising numbers over 4 MiB; `check` compares all pages with what it wrote last.
const WRITER: &str = "import array, threading
words = array.array('Q', bytes(4 << 20)); written = 0; torn = 0
def write():
    global written, torn
    while True:
        for page in range(0, len(words), 512):
            if words[page] != max(written - 1024, -1) + 1 and written > 1024: torn += 1
            words[page] = written = written + 1
threading.Thread(target=write, daemon=True).start()";

const ALL: HostFeatures = HostFeatures::ALL;

async fn check(guest: &Guest<'_>, what: &str) {
    let before: u64 = guest.eval("written").await.parse().unwrap();
    let begun = std::time::Instant::now();
    while guest.eval("written").await.parse::<u64>().unwrap() < before + 3000 {
        assert!(begun.elapsed() < SOON, "{what}: the writer stands still");
    }
    assert_eq!(guest.eval("torn").await, "0", "{what}");
}

async fn branch_twice_in(lab: &Lab, modes: &[BranchMode], what: &str) {
    let source = lab.python().await;
    source.eval(WRITER).await;
    check(&source, what).await;
    for mode in modes.iter().chain(modes) {
        let snapshot = source.try_branch(*mode).await.unwrap();
        let child = lab.one(&snapshot.tag).await;
        check(&child, &format!("{what}, {mode}")).await;
        child.remove().await;
        check(&source, what).await;
    }
    source.remove().await;
}

#[test]
fn every_mode_works_without_the_newer_kernel_features_and_with_swap() {
    block_on(async {
        for (what, features) in [
            ("no WP_UNPOPULATED", HostFeatures { write_protect_unpopulated: false, ..ALL }),
            ("no PAGEMAP_SCAN", HostFeatures { pagemap_scan: false, ..ALL }),
            ("swap", HostFeatures { no_swap: false, ..ALL }),
        ] {
            let lab = Lab::with_features(features).await;
            let modes = [BranchMode::Live, BranchMode::Diff, BranchMode::Full];
            branch_twice_in(&lab, &modes, what).await;
        }
    });
}

#[test]
fn without_write_protection_live_is_refused_with_a_reason_and_diff_works() {
    block_on(async {
        let lab = Lab::with_features(HostFeatures { write_protect: false, ..ALL }).await;
        branch_twice_in(&lab, &[BranchMode::Diff, BranchMode::Full], "no userfaultfd").await;
        let source = lab.python().await;
        let error = source.try_branch(BranchMode::Live).await.unwrap_err();
        assert!(matches!(error, EngineError::LiveUnavailable(_)), "{error}");
        assert_eq!(source.sh("echo runs").await, "runs");
    });
}
