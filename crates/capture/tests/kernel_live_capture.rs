//! Claim: what a row of captures collects is, after each of them, the content of every page at the
//! instant when that dirty set was closed, although another thread rewrites the pages all the time;
//! a capture takes what was written since the previous one and little else; and a capture that ends
//! in any way leaves no page protected.
//!
//! Method: a private mapping of a tmpfs file stands for guest RAM, and every other stretch of it is
//! zeros without a file, as a child has them. A writer thread stamps ever higher numbers into both
//! ends of random pages; the pause is a lock that the writer takes for each stamp. Under it a
//! reference copy is taken. Breaks when a page is released before it is copied, skipped, or copied
//! twice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forkd_capture::{
    CapturePlan, CaptureTarget, Captured, Copy, HostFeatures, NoProbe, NothingBelow, PageSink,
    PagesBelow, WriteProtection,
};
use forkd_sys::mapping::PrivateMapping;
use forkd_sys::pagemap::page_tables;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{ByteCount, GuestStopped, PageCount, PageIndex, PageRun};

const PAGES: u64 = 4096;
const LAST_WORD: usize = 511;

type Pages = Arc<Mutex<Vec<Option<Vec<u8>>>>>;

struct Memory(Pages);

impl PageSink for Memory {
    fn write(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()> {
        let mut pages = self.0.lock().unwrap();
        for (number, page) in data.chunks_exact(4096).enumerate() {
            let slot = &mut pages[start.as_usize() + number];
            assert!(slot.is_none(), "page {} was offered twice", start.get() + number as u64);
            *slot = Some(page.to_vec());
        }
        Ok(())
    }
}

struct Full;

impl PageSink for Full {
    fn write(&mut self, _: PageIndex, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// Stand-in for a guest: its RAM, and a writer that can be paused.
struct Guest {
    ram: Arc<PrivateMapping>,
    pause: Arc<Mutex<()>>,
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    writer: Option<std::thread::JoinHandle<()>>,
    _file: File,
}

/// The writer stands still while this is there.
struct Paused<'a> {
    _writer: MutexGuard<'a, ()>,
}

impl GuestStopped for Paused<'_> {}

/// A guest whose only writer is the test itself.
struct Idle;

impl GuestStopped for Idle {}

impl Guest {
    fn start() -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(PAGES * 4096).unwrap();
        let ram = Arc::new(PrivateMapping::of(&file, ByteCount::new(PAGES * 4096)).unwrap());
        for start in (20..PAGES - 20).step_by(40) {
            ram.map_zeros(PageRun::new(start, 20)).unwrap();
        }
        let (pause, stop) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
        let writes = Arc::new(AtomicU64::new(0));
        let writer = {
            let (ram, pause, stop, writes) =
                (Arc::clone(&ram), Arc::clone(&pause), Arc::clone(&stop), Arc::clone(&writes));
            std::thread::spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64;
                let mut number = 1;
                while !stop.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // Two pages of three, of a region that grows slowly: so there are many runs.
                    let region = (64 + number / 20_000).min(PAGES / 2);
                    let page = PageIndex::new(random % region * 3 / 2);
                    let running = pause.lock().unwrap();
                    ram.store(page, 0, number);
                    ram.store(page, LAST_WORD, number);
                    drop(running);
                    number += 1;
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Self { ram, pause, stop, writes, writer: Some(writer), _file: file }
    }

    fn target(&self, protection: WriteProtection, features: HostFeatures) -> CaptureTarget {
        target_of(&self.ram, protection, features)
    }

    fn pause(&self) -> Paused<'_> {
        Paused { _writer: self.pause.lock().unwrap() }
    }

    fn wait_for_writes(&self, more: u64) {
        let until = self.writes.load(Ordering::Relaxed) + more;
        let begun = std::time::Instant::now();
        while self.writes.load(Ordering::Relaxed) < until {
            assert!(begun.elapsed() < Duration::from_secs(120), "the writer is stuck");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn words(&self) -> Vec<(u64, u64)> {
        (0..PAGES)
            .map(PageIndex::new)
            .map(|page| (self.ram.load(page, 0), self.ram.load(page, LAST_WORD)))
            .collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.writer.take().unwrap().join().unwrap();
    }
}

fn protection() -> WriteProtection {
    WriteProtection::Userfaultfd(Userfaultfd::for_this_process().unwrap())
}

/// The memory of this process at `ram`.
fn target_of(
    ram: &PrivateMapping,
    protection: WriteProtection,
    features: HostFeatures,
) -> CaptureTarget {
    let me = rustix::process::getpid();
    let (address, length) = (ram.address(), ram.length());
    let tables = page_tables(me).unwrap();
    CaptureTarget::new(me, tables, address, length, protection, features).unwrap()
}

fn words_of(page: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
    (word(0), word(LAST_WORD * 8))
}

fn plan(copy: Copy, sink: Box<dyn PageSink>) -> CapturePlan {
    let below = Box::new(NothingBelow);
    CapturePlan { copy, also: Vec::new(), sink, below, probe: Arc::new(NoProbe) }
}

/// What all captures of a row have collected: the layers below of the next one.
#[derive(Clone)]
struct Collected(Pages);

impl Collected {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(vec![None; PageCount::new(PAGES).as_usize()])))
    }

    fn add(&self, captured: &Captured, pages: &Pages) {
        let (mut all, pages) = (self.0.lock().unwrap(), pages.lock().unwrap());
        for run in &captured.pages.zero {
            (run.start.as_usize()..run.end().as_usize()).for_each(|page| all[page] = None);
        }
        for (slot, page) in all.iter_mut().zip(pages.iter()) {
            if page.is_some() {
                slot.clone_from(page);
            }
        }
    }

    fn words(&self) -> Vec<(u64, u64)> {
        let all = self.0.lock().unwrap();
        all.iter().map(|page| page.as_deref().map_or((0, 0), words_of)).collect()
    }
}

impl PagesBelow for Collected {
    fn compare(&mut self, start: PageIndex, data: &[u8], same: &mut Vec<bool>) -> io::Result<()> {
        let all = self.0.lock().unwrap();
        let zero = vec![0; 4096];
        same.clear();
        for (number, page) in data.chunks_exact(4096).enumerate() {
            same.push(all[start.as_usize() + number].as_deref().unwrap_or(&zero) == page);
        }
        Ok(())
    }
}

fn recorder() -> (Pages, Box<Memory>) {
    let pages: Pages = Arc::new(Mutex::new(vec![None; PageCount::new(PAGES).as_usize()]));
    (Arc::clone(&pages), Box::new(Memory(pages)))
}

/// Takes ten captures in a row of a guest that writes, alternating between both ways to copy, and
/// compares what they add up to with a reference copy. Returns pages looked at, and faults.
fn ten_captures_in_a_row(features: HostFeatures, copies: [Copy; 2]) -> (Vec<PageCount>, u64) {
    let guest = Guest::start();
    guest.wait_for_writes(20_000);
    let protect = features.write_protect;
    let protection = if protect { protection() } else { WriteProtection::Unavailable };
    let mut target = guest.target(protection, features);
    let (collected, mut faults, mut looked_at) = (Collected::new(), 0, Vec::new());
    for round in 0..10 {
        let (pages, sink) = recorder();
        let mut plan = plan(copies[round % 2], sink);
        plan.below = Box::new(collected.clone());
        let prepared = target.prepare(plan);
        let armed = prepared.arm().unwrap();
        // Never written before: known to nobody.
        guest.ram.store(PageIndex::new(PAGES - 1 - round as u64), 0, 77);
        guest.wait_for_writes(50);
        let paused = guest.pause();
        let closed = armed.close_dirty_set(&paused).unwrap();
        let reference = guest.words();
        let captured = if copies[round % 2] == Copy::AfterResume {
            drop(paused);
            guest.wait_for_writes(200);
            closed.sweep().unwrap()
        } else {
            closed.sweep().unwrap()
        };
        faults += captured.stats.faults;
        looked_at.push(captured.stats.captured);
        collected.add(&captured, &pages);
        let words = collected.words();
        let torn = (0..words.len()).filter(|page| words[*page] != reference[*page]).count();
        assert_eq!(torn, 0, "round {round}: pages that differ from the reference");
        let stored = pages.lock().unwrap().iter().flatten().count() as u64;
        assert_eq!(captured.stats.stored, PageCount::new(stored));
        assert!(stored > 10, "the writer must have dirtied pages, not {stored}");
        target = captured.target;
    }
    guest.wait_for_writes(20_000);
    (looked_at, faults)
}

#[test]
fn a_row_of_live_captures_under_a_writer_adds_up_to_the_reference_copy() {
    let (_, faults) = ten_captures_in_a_row(HostFeatures::ALL, [Copy::AfterResume; 2]);
    assert!(faults > 100, "the writer must have met protected pages, not {faults} times");
}

#[test]
fn live_and_paused_captures_of_one_guest_build_on_each_other() {
    ten_captures_in_a_row(HostFeatures::ALL, [Copy::AfterResume, Copy::BeforeResume]);
}

#[test]
fn every_way_around_a_missing_feature_gives_the_same() {
    let all = HostFeatures::ALL;
    for features in [
        HostFeatures { write_protect_unpopulated: false, ..all },
        HostFeatures { pagemap_scan: false, ..all },
        HostFeatures { no_swap: false, ..all },
        HostFeatures { pagemap_scan: false, no_swap: false, ..all },
    ] {
        ten_captures_in_a_row(features, [Copy::AfterResume; 2]);
    }
    let features = HostFeatures { write_protect: false, ..all };
    ten_captures_in_a_row(features, [Copy::BeforeResume; 2]);
}

#[test]
fn a_capture_looks_only_at_what_was_written_since_the_previous_one() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(PAGES * 4096).unwrap();
    let ram = PrivateMapping::of(&file, ByteCount::new(PAGES * 4096)).unwrap();
    (0..2000).for_each(|page| ram.store(PageIndex::new(page), 0, page + 1));
    let mut target = target_of(&ram, protection(), HostFeatures::ALL);
    // Old pages, a fresh one, and none at all.
    for (written, want) in [(vec![], 2000), (vec![7, 900, 3000], 3), (vec![], 0), (vec![3000], 1)] {
        written.iter().for_each(|page| ram.store(PageIndex::new(*page), 1, 5));
        let (_, sink) = recorder();
        let prepared = target.prepare(plan(Copy::AfterResume, sink));
        let armed = prepared.arm().unwrap();
        let captured = armed.close_dirty_set(&Idle).unwrap().sweep().unwrap();
        assert_eq!(captured.stats.captured, PageCount::new(want), "{written:?}");
        target = captured.target;
        assert!(target.tracks());
    }
    assert_eq!(target.dirty_bytes().unwrap(), ByteCount::ZERO);
    ram.store(PageIndex::new(1), 1, 6);
    assert_eq!(target.dirty_bytes().unwrap(), ByteCount::new(4096));
}

#[test]
fn memory_that_an_earlier_userfaultfd_is_about_to_let_go_of_is_waited_for() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(PAGES * 4096).unwrap();
    let ram = PrivateMapping::of(&file, ByteCount::new(PAGES * 4096)).unwrap();
    let WriteProtection::Userfaultfd(earlier) = protection() else { panic!("a userfaultfd") };
    earlier.register(ram.address(), ram.length().get()).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(earlier);
    });
    target_of(&ram, protection(), HostFeatures::ALL);
    holder.join().unwrap();
}

#[test]
fn a_failing_sink_ends_the_capture_and_the_writer_goes_on() {
    let guest = Guest::start();
    guest.wait_for_writes(1000);
    let target = guest.target(protection(), HostFeatures::ALL);
    let prepared = target.prepare(plan(Copy::AfterResume, Box::new(Full)));
    let armed = prepared.arm().unwrap();
    let paused = guest.pause();
    let closed = armed.close_dirty_set(&paused).unwrap();
    drop(paused);
    let error = closed.sweep().unwrap_err();
    assert_eq!(error.to_string(), "write captured pages");
    guest.wait_for_writes(20_000);
}

#[test]
fn a_capture_dropped_in_any_state_leaves_the_writer_running() {
    let guest = Guest::start();
    for state in 0..4 {
        guest.wait_for_writes(1000);
        let target = guest.target(protection(), HostFeatures::ALL);
        let (_, sink) = recorder();
        let prepared = target.prepare(plan(Copy::AfterResume, sink));
        if state == 0 {
            continue;
        }
        let armed = prepared.arm().unwrap();
        if state == 1 {
            continue;
        }
        let paused = guest.pause();
        let closed = armed.close_dirty_set(&paused).unwrap();
        drop(paused);
        if state == 3 {
            // All pages stay protected until the target goes.
            drop(closed.sweep().unwrap());
        }
    }
    guest.wait_for_writes(20_000);
}

#[test]
fn a_paused_capture_takes_the_dirty_pages_and_those_asked_for_and_no_others() {
    let guest = Guest::start();
    guest.wait_for_writes(20_000);
    for protection in [WriteProtection::Unavailable, protection()] {
        let target = guest.target(protection, HostFeatures::ALL);
        let (pages, sink) = recorder();
        let mut plan = plan(Copy::BeforeResume, sink);
        plan.also = vec![PageRun::new(PAGES - 8, 8)];
        let prepared = target.prepare(plan);
        let armed = prepared.arm().unwrap();
        let paused = guest.pause();
        let captured = armed.close_dirty_set(&paused).unwrap().sweep().unwrap();
        let reference = guest.words();
        drop(paused);
        let asked_for = PageRun::new(PAGES - 8, 8);
        assert!(captured.pages.zero.contains(&asked_for), "{:?}", captured.pages.zero);
        let pages = pages.lock().unwrap();
        for (index, want) in reference.into_iter().enumerate() {
            assert_eq!(pages[index].as_deref().map_or((0, 0), words_of), want, "page {index}");
        }
    }
}
