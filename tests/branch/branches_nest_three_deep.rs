//! Goal: a branch of a branch of a branch has everything that its ancestors did, in memory and on
//! disk, and nothing that they did later.
//!
//! Method: each generation appends to a list in memory and to a file, then is branched, then
//! appends something that its child must not see. Breaks when a chain of layers or overlays is put
//! together in the wrong order or a layer of it is missing.

use forkd_testkit::{Guest, Lab, block_on};

async fn append(guest: &Guest<'_>, word: &str) {
    guest.eval(&format!("words.append('{word}')")).await;
    guest.sh(&format!("echo {word} >> /srv/words && sync")).await;
}

#[test]
fn the_third_generation_has_all_of_its_ancestors_and_nothing_later() {
    block_on(async {
        let lab = Lab::shared().await;
        let mut guest = lab.python().await;
        guest.eval("words = []").await;
        let mut expected = Vec::new();
        for generation in 0..3 {
            append(&guest, &format!("g{generation}")).await;
            expected.push(format!("g{generation}"));
            let (tag, mut children) = guest.branch_into(1).await;
            assert_eq!(lab.engine.snapshot(&tag).unwrap().chain_depth, generation + 2);
            append(&guest, "later").await;
            guest = children.pop().unwrap();
            let list = expected.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(", ");
            assert_eq!(guest.eval("words").await, format!("[{list}]"));
            guest.sh("echo 3 > /proc/sys/vm/drop_caches").await;
            assert_eq!(guest.sh("cat /srv/words").await, expected.join("\n"));
        }
    });
}
