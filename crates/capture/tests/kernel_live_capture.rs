//! Claim: a live capture holds each dirty page as it was when the dirty set was closed, although
//! another thread rewrites the pages all the time, and leaves nothing protected.
//!
//! Method: a private mapping of a tmpfs file stands for guest RAM. A writer thread stamps ever
//! higher numbers into both ends of random pages; the pause is a lock that the writer takes for
//! each stamp. Under it a reference copy is taken. Breaks when a page is released before it is
//! copied, skipped, or copied twice.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forkd_capture::{CaptureMode, CaptureTarget, Captured, PageSink, WriteProtection};
use forkd_sys::mapping::PrivateMapping;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{ByteCount, PageCount, PageIndex, PageRun};

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

impl Guest {
    fn start() -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(PAGES * 4096).unwrap();
        let ram = Arc::new(PrivateMapping::of(&file, ByteCount::new(PAGES * 4096)).unwrap());
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

    fn target(&self, protection: WriteProtection) -> CaptureTarget {
        let me = rustix::process::getpid();
        CaptureTarget::new(me, self.ram.address(), self.ram.length(), protection).unwrap()
    }

    fn wait_for_writes(&self, more: u64) {
        let until = self.writes.load(Ordering::Relaxed) + more;
        let begun = std::time::Instant::now();
        while self.writes.load(Ordering::Relaxed) < until {
            assert!(begun.elapsed() < Duration::from_secs(10), "the writer is stuck");
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

fn words_of(page: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
    (word(0), word(LAST_WORD * 8))
}

#[test]
fn a_live_capture_under_a_writer_equals_the_reference_copy_ten_times_in_a_row() {
    let guest = Guest::start();
    guest.wait_for_writes(20_000);
    let mut target = guest.target(protection());
    let mut faults = 0;
    for round in 0..10 {
        let pages: Pages = Arc::new(Mutex::new(vec![None; 4096]));
        let mut prepared =
            target.prepare(CaptureMode::Live, Box::new(Memory(pages.clone()))).unwrap();
        // Both ways to find the dirty set: known before the pause, and scanned in it.
        if round % 2 == 0 {
            prepared.arm().unwrap();
            // Never written before, so the scan did not see it.
            guest.ram.store(PageIndex::new(PAGES - 1 - round), 0, 77);
            guest.wait_for_writes(50);
        }
        let paused = guest.pause.lock().unwrap();
        let closed = prepared.close_dirty_set().unwrap();
        let reference = guest.words();
        drop(paused);
        guest.wait_for_writes(200);
        let Captured { target: again, pages: found, stats } = closed.sweep().unwrap();
        target = again;
        faults += stats.faults;
        let pages = pages.lock().unwrap();
        let (mut stored, mut torn) = (0, 0);
        for (index, page) in pages.iter().enumerate() {
            let want = reference[index];
            let got = page.as_deref().map_or((0, 0), words_of);
            torn += usize::from(got != want);
            stored += u64::from(page.is_some());
        }
        assert_eq!(torn, 0, "round {round}: pages that differ from the reference");
        assert_eq!(stats.stored, PageCount::new(stored));
        assert_eq!(found.stored.iter().map(|run| run.count.get()).sum::<u64>(), stored);
        assert_eq!(stats.written_since_armed > PageCount::ZERO, round % 2 == 0);
        assert!(stored > 50, "the writer must have dirtied many pages, not {stored}");
    }
    assert!(faults > 100, "the writer must have met protected pages, not {faults} times");
    guest.wait_for_writes(20_000);
}

#[test]
fn a_failing_sink_ends_the_capture_and_the_writer_goes_on() {
    let guest = Guest::start();
    guest.wait_for_writes(1000);
    let target = guest.target(protection());
    let prepared = target.prepare(CaptureMode::Live, Box::new(Full)).unwrap();
    let paused = guest.pause.lock().unwrap();
    let closed = prepared.close_dirty_set().unwrap();
    drop(paused);
    let error = closed.sweep().unwrap_err();
    assert_eq!(error.to_string(), "write captured pages");
    guest.wait_for_writes(20_000);
}

#[test]
fn a_capture_dropped_in_any_state_leaves_the_writer_running() {
    let guest = Guest::start();
    guest.wait_for_writes(1000);
    let pages: Pages = Arc::new(Mutex::new(vec![None; 4096]));
    let target = guest.target(protection());
    drop(target.prepare(CaptureMode::Live, Box::new(Memory(pages.clone()))).unwrap());
    guest.wait_for_writes(1000);
    let target = guest.target(protection());
    let prepared = target.prepare(CaptureMode::Live, Box::new(Memory(pages))).unwrap();
    let paused = guest.pause.lock().unwrap();
    let closed = prepared.close_dirty_set().unwrap();
    drop(paused);
    drop(closed);
    guest.wait_for_writes(20_000);
}

#[test]
fn a_paused_capture_takes_the_dirty_pages_and_those_asked_for_and_no_others() {
    let guest = Guest::start();
    guest.wait_for_writes(20_000);
    let target = guest.target(WriteProtection::Unavailable);
    let pages: Pages = Arc::new(Mutex::new(vec![None; 4096]));
    let also = vec![PageRun::new(PAGES - 8, 8)];
    let mode = CaptureMode::Paused { also };
    let paused = guest.pause.lock().unwrap();
    let prepared = target.prepare(mode, Box::new(Memory(pages.clone()))).unwrap();
    let captured = prepared.close_dirty_set().unwrap().sweep().unwrap();
    let reference = guest.words();
    drop(paused);
    assert_eq!(captured.pages.zero, [PageRun::new(PAGES - 8, 8)], "asked for, and all zero");
    let pages = pages.lock().unwrap();
    for (index, want) in reference.into_iter().enumerate() {
        assert_eq!(pages[index].as_deref().map_or((0, 0), words_of), want, "page {index}");
    }
}
