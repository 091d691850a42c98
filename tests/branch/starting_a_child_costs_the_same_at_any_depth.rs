//! Goal: how deep a snapshot's chain of memory layers is, and how ragged, is nothing that a child
//! waits for.
//!
//! Method: a line of branches of branches down to depth 50, of an image without a disk; and a
//! snapshot whose delta has every other page of a large blob. Children of these and of a shallow
//! snapshot are started in turns, and the shortest start of each compared, after more turns where
//! the host is busy. Breaks when thousands of runs are mapped at every start, or a layer costs a
//! child half a per cent of it.

use std::time::Duration;

use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::SnapshotTag;

const DEPTH: usize = 50;
/// Turns on an idle host, and on one that is so busy that no start may have been spared so far.
const STARTS: usize = 9;
const STARTS_MOST: usize = 60;

/// Branches and goes on in the child.
async fn step(guest: Guest<'_>) -> (SnapshotTag, Guest<'_>) {
    let (tag, mut children) = guest.branch_into(1).await;
    guest.remove().await;
    (tag, children.pop().unwrap())
}

/// Whether the shortest start of children of `other` takes at most half as long again as that of
/// `plain`. Other work on the host touches the shortest least, and less the more there are.
async fn assert_alike(lab: &Lab, plain: &SnapshotTag, other: &SnapshotTag) {
    let mut shortest = [Duration::MAX; 2];
    for turn in 1..=STARTS_MOST {
        for (tag, shortest) in [plain, other].into_iter().zip(&mut shortest) {
            let child = lab.one(tag).await;
            let started_in = lab.engine.sandbox(&child.id).unwrap().started_in.unwrap();
            *shortest = started_in.min(*shortest);
            child.remove().await;
        }
        if turn >= STARTS && shortest[1] < shortest[0] + shortest[0] / 2 {
            return;
        }
    }
    panic!("{plain}: {:?}, {other}: {:?}", shortest[0], shortest[1]);
}

#[test]
fn a_child_of_the_fiftieth_generation_starts_as_fast_as_one_of_the_first() {
    block_on(async {
        let lab = Lab::new().await;
        let guest = lab.tiny().await;
        guest.sh("head -c 8000000 /dev/urandom > /tmp/blob; touch /tmp/lines").await;
        let (shallow, mut guest) = step(guest).await;
        let mut deep = shallow.clone();
        for number in 2..DEPTH {
            let seek = number * 100_000;
            guest
                .sh(&format!(
                    "echo {number} >> /tmp/lines; \
                     echo {number} | dd of=/tmp/blob bs=1 seek={seek} conv=notrunc 2>/dev/null"
                ))
                .await;
            (deep, guest) = step(guest).await;
        }
        assert_eq!(lab.engine.snapshot(&deep).unwrap().chain_depth, DEPTH);
        let state = "cat /tmp/lines; md5sum < /tmp/blob";
        let expected = guest.sh(state).await;
        guest.remove().await;
        lab.wait_durable(&deep).await;
        assert_eq!(lab.one(&deep).await.sh(state).await, expected);
        assert_alike(&lab, &shallow, &deep).await;
    });
}

#[test]
fn a_child_of_a_ragged_snapshot_starts_as_fast_as_one_of_a_smooth_one() {
    block_on(async {
        let lab = Lab::new().await;
        let guest = lab.python().await;
        guest.eval("blob = bytearray(b'x' * (64 << 20))").await;
        let (smooth, guest) = step(guest).await;
        guest.eval("blob[:48 << 20:8192] = b'y' * (6 << 10)").await;
        let (ragged, guest) = step(guest).await;
        let digest = "__import__('zlib').crc32(blob)";
        let expected = guest.eval(digest).await;
        guest.remove().await;
        lab.wait_durable(&ragged).await;
        let child = lab.one(&ragged).await;
        let pid = lab.engine.sandbox(&child.id).unwrap().pid.unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        // One line for each mapping: the runs, and QEMU's own.
        assert!(maps.lines().count() < 2048, "{} mappings", maps.lines().count());
        assert_eq!(child.eval(digest).await, expected);
        child.remove().await;
        assert_alike(&lab, &smooth, &ragged).await;
    });
}
