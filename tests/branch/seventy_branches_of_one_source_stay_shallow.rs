//! Goal: a source can be branched as often as one likes; its disk does not become a deeper chain,
//! and the last child has everything that was ever written.
//!
//! Method: seventy branches, each after a line added to a file on the disk and read back past the
//! cache; more than a chain may be deep. The cost of freezing the disk at the end is compared with
//! the beginning. Breaks when overlays pile up, or when merging them loses or mixes data.

use forkd_testkit::{Lab, block_on};
use forkd_types::BranchPhase;

const BRANCHES: usize = 70;

#[test]
fn the_last_of_seventy_children_has_all_lines_and_freezing_is_no_slower() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        let mut freezes = Vec::new();
        let mut last = None;
        for number in 1..=BRANCHES {
            source.sh(&format!("echo {number} >> /srv/lines && sync")).await;
            let snapshot = source.branch().await;
            freezes.push(snapshot.branch.unwrap().phases.get(BranchPhase::FreezeDisk).unwrap());
            last = Some(snapshot.tag);
        }
        let expected = (1..=BRANCHES).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let child = lab.one(&last.unwrap()).await;
        for guest in [&source, &child] {
            guest.sh("echo 3 > /proc/sys/vm/drop_caches").await;
            assert_eq!(guest.sh("cat /srv/lines").await, expected);
        }
        let median = |times: &[std::time::Duration]| {
            let mut times = times.to_vec();
            times.sort_unstable();
            times[times.len() / 2]
        };
        let (first, end) = (median(&freezes[..16]), median(&freezes[BRANCHES - 16..]));
        assert!(end < first * 3, "freezing took {first:?} at first and {end:?} at the end");
    });
}
