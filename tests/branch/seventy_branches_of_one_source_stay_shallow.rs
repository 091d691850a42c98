//! Goal: a source can be branched as often as one likes; its disk does not become a deeper chain,
//! and the last child has everything that was ever written.
//!
//! Method: seventy branches, each after a line added to a file on the disk and read back past the
//! cache; more than a chain may be deep. The overlays that the source's VMM has open are counted,
//! because freezing the disk walks all of them. Breaks when overlays pile up, or when merging them
//! loses or mixes data.

use forkd_testkit::{Lab, block_on};
use forkd_types::limit;

const BRANCHES: usize = 70;

#[test]
fn the_last_of_seventy_children_has_all_lines_and_the_source_few_overlays() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        // One is on top, one stands by.
        let most = lab.open_overlays(&source.id) + limit::OVERLAYS_BEFORE_FLATTEN + 1;
        let mut last = None;
        for number in 1..=BRANCHES {
            source.sh(&format!("echo {number} >> /srv/lines && sync")).await;
            last = Some(source.branch().await.tag);
            let open = lab.open_overlays(&source.id);
            assert!(open <= most, "{open} overlays after {number} branches");
        }
        let expected = (1..=BRANCHES).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let child = lab.one(&last.unwrap()).await;
        for guest in [&source, &child] {
            guest.sh("echo 3 > /proc/sys/vm/drop_caches").await;
            assert_eq!(guest.sh("cat /srv/lines").await, expected);
        }
    });
}
