//! Goal: branch after branch of one source captures and stores only what changed since the previous
//! one; the chain stays bounded; and every snapshot stays complete whatever happens to the others.
//!
//! Method: a source with 24 MiB of random data changes one page of it before each of forty
//! branches, and all of it once. Captured bytes are compared with what was changed; children of the
//! first, middle and last snapshot are asked for the digest that the source had then, after all
//! other snapshots were deleted. Breaks when a branch starts from scratch, when a page is taken
//! from the wrong layer, or when a layer is removed that a later snapshot needs.

use forkd_engine::DeletePolicy;
use forkd_testkit::{Lab, block_on};

const SETUP: &str = "import mmap, random, zlib\nblob = mmap.mmap(-1, 24 << 20)\n\
    def refill(): blob[:] = random.randbytes(len(blob))\nrefill()";
/// Of 24 MiB, in an emulated guest: a cryptographic one takes seconds.
const DIGEST: &str = "zlib.crc32(blob)";
/// What an idle guest with a Python interpreter and its agent writes between two branches.
const IDLE_BYTES: u64 = 6 << 20;
/// The template's layer, the deltas that a source gathers before they are merged, and the merged.
const DEPTH_MAX: usize = 1 + 16 + 1;

#[test]
fn forty_branches_capture_what_changed_and_each_child_has_its_own_state() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval(SETUP).await;
        let first = source.branch().await;
        let report = first.branch.as_ref().unwrap();
        assert!(report.stored.get() > 24 << 20, "all of it is new: {}", report.stored);
        let mut taken = vec![(first.tag, source.eval(DIGEST).await)];
        for number in 1..40u64 {
            if number == 20 {
                source.eval("refill()").await;
            } else {
                let at = number * 41 % 6144 * 4096;
                source.eval(&format!("blob[{at}:{at} + 8] = b'page{number:04}'")).await;
            }
            let snapshot = source.branch().await;
            let report = snapshot.branch.as_ref().unwrap();
            // Python makes the new content as a number and as bytes before it copies them.
            let (least, most) = if number == 20 { (24 << 20, 140 << 20) } else { (4096, 0) };
            assert!(report.stored.get() >= least, "branch {number}: {}", report.stored);
            let most = most + IDLE_BYTES;
            assert!(report.captured.get() <= most, "branch {number}: {}", report.captured);
            assert!(report.stored <= report.dirty && report.dirty <= report.captured);
            assert!(snapshot.chain_depth <= DEPTH_MAX, "{}", snapshot.chain_depth);
            taken.push((snapshot.tag, source.eval(DIGEST).await));
        }
        let kept = [0, 13, 25, 39];
        for (number, (tag, _)) in taken.iter().enumerate() {
            if !kept.contains(&number) {
                lab.engine.delete_snapshot(tag, DeletePolicy::Refuse).await.unwrap();
            }
        }
        for (tag, digest) in kept.map(|number| &taken[number]) {
            let child = lab.one(tag).await;
            assert_eq!(&child.eval(DIGEST).await, digest, "{tag}");
            child.remove().await;
        }
        assert_eq!(source.eval(DIGEST).await, taken[39].1, "the source lost nothing either");
    });
}
