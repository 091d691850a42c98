//! Goal: entropy, machine id, host name and instance id differ in 20 children of one snapshot, and
//! the clock of each is right.
//!
//! Method: the kernel's random generator is read in each as the first thing; the clock is compared
//! with the host's before and after the question. Breaks when the renewal leaves one of them out,
//! or a child is handed out before it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_testkit::{Lab, block_on};

const QUESTION: &str = "head -c 16 /dev/urandom | md5sum | cut -c1-32
cat /etc/machine-id
hostname
cat /run/forkd/instance-id
date +%s";

/// Between the branch point and the children, in which a clock that is not moved falls behind: as
/// often as long as a child takes to start, and at least so long.
const AGE: (u32, Duration) = (4, Duration::from_secs(3));

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

#[test]
fn twenty_children_differ_in_entropy_and_names_and_know_the_time() {
    let _turn = crate::one_at_a_time();
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.tiny().await;
        // Time passes between the branch point and the children: their clocks must be moved.
        let snapshot = source.branch().await;
        let begun = Instant::now();
        lab.one(&snapshot.tag).await.remove().await;
        tokio::time::sleep(AGE.1.max(AGE.0 * begun.elapsed())).await;
        let children = lab.fork(&snapshot.tag, 20).await;
        let mut seen: Vec<BTreeSet<String>> = vec![BTreeSet::new(); 4];
        for child in &children {
            let before = now();
            let answer = child.sh(QUESTION).await;
            let after = now();
            let lines: Vec<&str> = answer.lines().collect();
            let [entropy, machine, host, instance, clock] = lines[..] else {
                panic!("five lines, not {answer:?}")
            };
            assert_eq!(host, child.id.as_str());
            assert_eq!(instance, child.id.as_str());
            for (set, value) in seen.iter_mut().zip([entropy, machine, host, instance]) {
                assert!(value.len() >= 15, "`{value}` is not an identity");
                assert!(set.insert(value.to_owned()), "{value} appears twice");
            }
            let clock: u64 = clock.parse().unwrap();
            // It was told the time while it was started, and tells whole seconds.
            let started_in = lab.engine.sandbox(&child.id).unwrap().started_in.unwrap();
            let told = (before - started_in).as_secs()..=after.as_secs();
            assert!(told.contains(&clock), "{} says {clock}, the host {told:?}", child.id);
        }
        for child in children {
            child.remove().await;
        }
    });
}
