//! Goal: no program of the guest runs between the resume of a child and its renewal, however busy
//! the host is.
//!
//! Method: a program that ran at the branch point counts until the identity changes, and then tells
//! its count and a random number. If it waits for the renewal, its count is that of the branch
//! point in every child. Breaks when the program runs before: then the counts differ, since no two
//! children take equally long. Children start while all processors of the host are wanted by
//! others, so that the VMM has to wait for one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forkd_testkit::{Lab, block_on};

const CHILDREN: usize = 20;
/// Threads that want a processor of the host all the time, for each that it has.
const BUSY_PER_PROCESSOR: usize = 2;

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

/// Keeps the processors of the host busy until it is dropped.
struct BusyHost(Arc<AtomicBool>);

impl BusyHost {
    fn begin() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().unwrap().get();
        for _ in 0..processors * BUSY_PER_PROCESSOR {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {});
        }
        Self(is_over)
    }
}

impl Drop for BusyHost {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

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
        let busy = BusyHost::begin();
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
        drop(busy);
        assert_eq!(counts, [counts[0]; CHILDREN], "a program ran before the renewal");
    });
}
