//! Goal: no program of the guest runs between the resume of a child and its renewal, however busy
//! the host is.
//!
//! Method: a program on each vCPU that ran at the branch point counts until the identity changes,
//! and then tells its count and a random number. If it waits for the renewal, its count is that of
//! the branch point in every child. Breaks when the program runs before: then the counts differ,
//! since no two children take equally long. Children start while all processors of the host are
//! wanted by others, so that the VMM has to wait for one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forkd_engine::{NoProgress, TemplateImage, TemplateRequest};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{ByteCount, MachineSize};

const CHILDREN: usize = 20;
/// Each is twice as much to do, and on KVM in an emulated machine.
const CHILDREN_OF_TWO_VCPUS: usize = 8;
/// Threads that want a processor of the host all the time, for each that it has.
const BUSY_PER_PROCESSOR: usize = 2;

/// Counts until the identity changes, on the vCPU of that number.
const PROGRAM: &str = "import os, sys
vcpu = int(sys.argv[1])
os.sched_setaffinity(0, {vcpu})
identity = os.open('/run/forkd/instance-id', os.O_RDONLY)
pread, urandom = os.pread, os.urandom
before = pread(identity, 64, 0)
open(f'/tmp/counting-{vcpu}', 'w').close()
count = 0
while pread(identity, 64, 0) == before:
    count += 1
with open(f'/tmp/new-{vcpu}', 'w') as out: print(count, urandom(8).hex(), file=out)
os.rename(f'/tmp/new-{vcpu}', f'/tmp/counted-{vcpu}')
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
        assert_that_programs_wait(lab, source, 1, CHILDREN).await;
    });
}

#[test]
fn programs_on_two_vcpus_wait_for_the_renewal_in_eight_children() {
    let _turn = crate::one_at_a_time();
    block_on(async {
        let lab = Lab::shared().await;
        if lab.vcpus_take_turns() {
            // The one thread cannot be held for one of them.
            return;
        }
        let request = TemplateRequest {
            tag: "waits-on-two-vcpus".parse().unwrap(),
            image: TemplateImage::Named("python".to_owned()),
            size: MachineSize::new(ByteCount::from_mib(256), 2).unwrap(),
            cpu: forkd_types::CpuModel::Host,
            warm: Vec::new(),
            shared: false,
            private: false,
        };
        let template = lab.engine.build_template(request, Arc::new(NoProgress)).await.unwrap();
        let source = lab.one(&template.tag).await;
        assert_that_programs_wait(lab, source, 2, CHILDREN_OF_TWO_VCPUS).await;
    });
}

/// Branches a source in which a program counts on each vCPU, and looks at its children.
async fn assert_that_programs_wait(lab: &Lab, source: Guest<'_>, vcpus: usize, children: usize) {
    source.write("/tmp/program.py", PROGRAM.as_bytes()).await;
    for vcpu in 0..vcpus {
        source.spawn(&format!("python3 /tmp/program.py {vcpu}")).await;
        let counting = format!("/tmp/counting-{vcpu}");
        source.sh(&format!("until [ -e {counting} ]; do sleep 0.05; done")).await;
    }
    let snapshot = source.branch().await;
    // They would count on, beside the children.
    source.remove().await;
    let busy = BusyHost::begin();
    let (mut counts, mut drawn) = (vec![Vec::new(); vcpus], BTreeSet::new());
    for _ in 0..children {
        let child = lab.one(&snapshot.tag).await;
        for (vcpu, counts) in counts.iter_mut().enumerate() {
            let counted = format!("/tmp/counted-{vcpu}");
            let tell = format!("until [ -e {counted} ]; do sleep 0.05; done; cat {counted}");
            let told = child.sh(&tell).await;
            let (count, random) = told.split_once(' ').unwrap();
            counts.push(count.parse::<u64>().unwrap());
            assert!(drawn.insert(random.to_owned()), "{random} was drawn twice");
        }
        child.remove().await;
    }
    drop(busy);
    for (vcpu, counts) in counts.iter().enumerate() {
        let same = vec![counts[0]; children];
        assert_eq!(counts[..], same, "a program on vCPU {vcpu} ran before the renewal");
    }
}
