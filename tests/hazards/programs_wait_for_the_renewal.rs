//! Goal: no program of the guest runs between the resume of a child and its renewal.
//!
//! Method: a program that ran at the branch point counts until the identity changes, and then tells
//! its count and a random number. If it waits for the renewal, its count is that of the branch
//! point in every child. Breaks when the program runs before: then the counts differ, since no two
//! children take equally long.

use std::collections::BTreeSet;

use forkd_testkit::{Lab, block_on};

const CHILDREN: usize = 20;

/// Counts until the identity changes.
const PROGRAM: &str = "import os
identity = os.open('/run/forkd/instance-id', os.O_RDONLY)
pread, urandom = os.pread, os.urandom
before = pread(identity, 64, 0)
open('/tmp/counting', 'w').close()
count = 0
while pread(identity, 64, 0) == before:
    count += 1
with open('/tmp/new', 'w') as out: print(count, urandom(8).hex(), file=out)
os.rename('/tmp/new', '/tmp/counted')
";

#[test]
fn a_program_that_ran_at_the_branch_point_waits_for_the_renewal_in_twenty_children() {
    let _turn = crate::one_at_a_time();
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.write("/tmp/program.py", PROGRAM.as_bytes()).await;
        source.spawn("python3 /tmp/program.py").await;
        source.sh("until [ -e /tmp/counting ]; do sleep 0.05; done").await;
        let snapshot = source.branch().await;
        // It would count on, beside the children.
        source.remove().await;
        let (mut counts, mut drawn) = (Vec::new(), BTreeSet::new());
        for _ in 0..CHILDREN {
            let child = lab.one(&snapshot.tag).await;
            let tell = "until [ -e /tmp/counted ]; do sleep 0.05; done; cat /tmp/counted";
            let told = child.sh(tell).await;
            let (count, random) = told.split_once(' ').unwrap();
            counts.push(count.parse::<u64>().unwrap());
            assert!(drawn.insert(random.to_owned()), "{random} was drawn twice");
            child.remove().await;
        }
        assert_eq!(counts, [counts[0]; CHILDREN], "a program ran before the renewal");
    });
}
