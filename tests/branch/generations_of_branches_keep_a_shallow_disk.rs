//! Goal: branches of branches, each of another child, do not make the disk a deeper and deeper
//! chain, and the last child has everything that any generation wrote.
//!
//! Method: a line of generations, each of which adds a line to a file on the disk. The overlays
//! that the last child's VMM has open are counted. Breaks when a snapshot lists the overlays of all
//! generations before it, or when merging them loses or mixes data.

use forkd_testkit::{Lab, block_on};
use forkd_types::limit;

const GENERATIONS: usize = limit::OVERLAYS_BEFORE_FLATTEN + 6;

#[test]
fn a_late_generation_has_few_overlays_and_all_lines() {
    block_on(async {
        let lab = Lab::new().await;
        let mut guest = lab.python().await;
        let first = lab.open_overlays(&guest.id);
        let mut most = first;
        for number in 1..=GENERATIONS {
            guest.sh(&format!("echo {number} >> /srv/lines && sync")).await;
            let (_, mut children) = guest.branch_into(1).await;
            guest.remove().await;
            guest = children.pop().unwrap();
            most = most.max(lab.open_overlays(&guest.id));
        }
        let expected = (1..=GENERATIONS).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        guest.sh("echo 3 > /proc/sys/vm/drop_caches").await;
        assert_eq!(guest.sh("cat /srv/lines").await, expected);
        assert!(most <= first + limit::OVERLAYS_BEFORE_FLATTEN, "{most} overlays at most");
        let last = lab.open_overlays(&guest.id);
        assert!(last < first + GENERATIONS / 2, "{last} overlays in the last generation");
    });
}
