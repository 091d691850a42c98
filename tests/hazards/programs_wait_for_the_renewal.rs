//! Goal: no program of the guest runs between the resume of a child and its renewal, on none of its
//! vCPUs, however busy the host is.
//!
//! Method: programs that ran at the branch point, one bound to each vCPU, count until the identity
//! changes, and then tell their counts and random numbers. If they wait for the renewal, the count
//! on the first vCPU is that of the branch point in every child, and nearly so on another. Breaks
//! when a program runs before: then its counts differ, since no two children take equally long.
//! Children start while all processors of the host are wanted by others, so that the VMM has to
//! wait for one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forkd_engine::{NoProgress, TemplateImage, TemplateRequest};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{ByteCount, MachineSize};

const CHILDREN: usize = 20;
/// The interrupt reaches one vCPU, whose thread wakes those of the others: a few turns of such a
/// program. Without them it makes thousands.
const TURNS_MAX: u64 = 100;
/// Threads that want a processor of the host all the time, for each that it has.
const BUSY_PER_PROCESSOR: usize = 2;

/// Counts on the vCPU that it is told until the identity changes.
const PROGRAM: &str = "import os, sys
vcpu = sys.argv[1]
os.sched_setaffinity(0, {int(vcpu)})
identity = os.open('/run/forkd/instance-id', os.O_RDONLY)
pread, urandom = os.pread, os.urandom
before = pread(identity, 64, 0)
open('/tmp/counting' + vcpu, 'w').close()
count = 0
while pread(identity, 64, 0) == before:
    count += 1
with open('/tmp/new' + vcpu, 'w') as out: print(count, urandom(8).hex(), file=out)
os.rename('/tmp/new' + vcpu, '/tmp/counted' + vcpu)
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

/// A sandbox with Python and that many vCPUs.
async fn source(lab: &Lab, vcpus: u32) -> Guest<'_> {
    if vcpus == 1 {
        return lab.python().await;
    }
    let request = TemplateRequest {
        tag: format!("waiting-{vcpus}").parse().unwrap(),
        image: TemplateImage::Named("python".to_owned()),
        size: MachineSize::new(ByteCount::from_mib(192), vcpus).unwrap(),
        warm: Vec::new(),
        shared: false,
    };
    let template = lab.engine.build_template(request, Arc::new(NoProgress)).await.unwrap();
    lab.one(&template.tag).await
}

async fn programs_wait(vcpus: u32) {
    let lab = Lab::shared().await;
    let source = source(lab, vcpus).await;
    source.write("/tmp/program.py", PROGRAM.as_bytes()).await;
    for vcpu in 0..vcpus {
        source.spawn(&format!("python3 /tmp/program.py {vcpu}")).await;
        source.sh(&format!("until [ -e /tmp/counting{vcpu} ]; do sleep 0.05; done")).await;
    }
    let snapshot = source.branch().await;
    // It would count on, beside the children.
    source.remove().await;
    let busy = BusyHost::begin();
    let (mut counts, mut drawn) = (vec![Vec::new(); vcpus as usize], BTreeSet::new());
    for _ in 0..CHILDREN {
        let child = lab.one(&snapshot.tag).await;
        for (vcpu, counts) in counts.iter_mut().enumerate() {
            let file = format!("/tmp/counted{vcpu}");
            let tell = format!("until [ -e {file} ]; do sleep 0.05; done; cat {file}");
            let told = child.sh(&tell).await;
            let (count, random) = told.split_once(' ').unwrap();
            counts.push(count.parse::<u64>().unwrap());
            assert!(drawn.insert(random.to_owned()), "{random} was drawn twice");
        }
        child.remove().await;
    }
    drop(busy);
    assert_eq!(counts[0], [counts[0][0]; CHILDREN], "a program ran before the renewal");
    for counts in &counts[1..] {
        let [least, most] = [counts.iter().min(), counts.iter().max()].map(Option::unwrap);
        assert!(most - least <= TURNS_MAX, "a program ran before the renewal: {counts:?}");
    }
}

#[test]
fn a_program_that_ran_at_the_branch_point_waits_for_the_renewal_in_twenty_children() {
    let _turn = crate::one_at_a_time();
    block_on(programs_wait(1));
}

#[test]
fn programs_on_two_vcpus_wait_for_the_renewal_in_twenty_children() {
    let _turn = crate::one_at_a_time();
    block_on(programs_wait(2));
}
