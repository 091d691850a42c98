//! Goal: the tenth branch of one source is as right as the first, while a process writes all the
//! time; and a child's memory is whole.
//!
//! Method: a thread rewrites 8 MiB page by page with ever higher numbers, and before each write
//! checks that both ends of the page hold what it wrote there the last time. So what its registers
//! believe is compared with what memory holds, in the child from the branch point on. Breaks when
//! a page is released before it is captured, skipped, or taken from another moment than the
//! registers.

use forkd_testkit::{Guest, Lab, block_on};

const WRITER: &str = r"
import mmap, threading, time
area = mmap.mmap(-1, 8 << 20)
step, stop, torn = 0, False, []
def write():
    global step
    while not stop:
        before = step.to_bytes(8, 'little')
        after = (step + 1).to_bytes(8, 'little')
        for at in range(0, len(area), 4096):
            if area[at:at + 8] != before or area[at + 4088:at + 4096] != before:
                torn.append((step, at))
            area[at:at + 8] = after
            area[at + 4088:at + 4096] = after
        step += 1
writer = threading.Thread(target=write, daemon=True)
writer.start()
def sweeps(count):
    end = step + count
    while step < end: time.sleep(0.005)
";

/// Two sweeps check every page that was written before the branch point.
async fn torn_pages(guest: &Guest<'_>) -> String {
    guest.eval("sweeps(2)").await;
    guest.eval("len(torn)").await
}

#[test]
fn ten_branches_under_a_writer_are_each_of_one_instant() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval(WRITER).await;
        let mut faults = 0;
        source.eval("sweeps(1)").await;
        for round in 0..10 {
            let (tag, mut children) = source.branch_into(1).await;
            let child = children.pop().unwrap();
            assert_eq!(torn_pages(&child).await, "0", "child of round {round}");
            let report = lab.engine.snapshot(&tag).unwrap().branch.unwrap();
            assert!(report.dirty.get() > 8 << 20 && report.stored <= report.dirty, "{report:?}");
            faults += report.faults;
            child.remove().await;
        }
        assert_eq!(torn_pages(&source).await, "0", "the source");
        assert!(faults > 0, "the writer must have met protected pages");
    });
}
