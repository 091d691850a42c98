//! The states of a capture, as types.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use forkd_sys::pagemap::{AddressRange, PrivatePageScanner, Swapped};
use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{ByteCount, PageCount, PageIndex, PageRun, limit};
use rustix::process::Pid;

use crate::bitmap::PageBitmap;
use crate::ledger::{CaptureStats, CapturedPages, Ledger};
use crate::worker::{Phase, Source, Worker};
use crate::{CaptureError, PageSink};

/// The memory of one guest: where it is, and how its dirty pages are found and protected. Kept with
/// the VM; a capture borrows it and gives it back.
pub struct CaptureTarget {
    memory: RemoteMemory,
    address: u64,
    length: ByteCount,
    scanner: PrivatePageScanner,
    protection: Option<Arc<Userfaultfd>>,
    /// Reused, so that a scan in the pause window does not allocate.
    ranges: Vec<AddressRange>,
}

impl fmt::Debug for CaptureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureTarget")
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Whether the target can be write-protected.
#[derive(Debug)]
pub enum WriteProtection {
    /// Through this userfaultfd, made in the VMM.
    Userfaultfd(Userfaultfd),
    /// Not on this host: only [`CaptureMode::Paused`] is possible.
    Unavailable,
}

/// When pages are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureMode {
    /// After the guest resumed; pages are write-protected until they are copied.
    Live,
    /// Before the guest resumes.
    Paused {
        /// Pages to capture besides the dirty ones: those of the layers below, when the snapshot
        /// shall depend on no other.
        also: Vec<PageRun>,
    },
}

/// Ranges that a first scan can find without growing its buffer: 1.5 MiB.
const RANGES_RESERVED: usize = 64 * 1024;

impl CaptureTarget {
    /// The guest RAM at `[address, address + length)` of process `pid`.
    ///
    /// # Errors
    /// When the process's page tables cannot be read or the range not be registered.
    pub fn new(
        pid: Pid,
        address: u64,
        length: ByteCount,
        protection: WriteProtection,
    ) -> Result<Self, CaptureError> {
        let scanner = PrivatePageScanner::of(pid).map_err(CaptureError::Scan)?;
        let protection = match protection {
            WriteProtection::Userfaultfd(uffd) => {
                uffd.register(address, length.get())?;
                Some(Arc::new(uffd))
            }
            WriteProtection::Unavailable => None,
        };
        Ok(Self {
            memory: RemoteMemory::of(pid),
            address,
            length,
            scanner,
            protection,
            ranges: Vec::with_capacity(RANGES_RESERVED),
        })
    }

    /// Gets ready to capture into `sink`. The guest runs on; a live capture's thread waits.
    ///
    /// # Errors
    /// When the thread cannot be started. [`CaptureMode::Live`] without write protection is a
    /// mistake of the caller's and panics.
    ///
    /// # Panics
    /// See above.
    pub fn prepare(
        self,
        mode: CaptureMode,
        sink: Box<dyn PageSink>,
    ) -> Result<PreparedCapture, CaptureError> {
        let ledger = Ledger::new(self.pages(), sink);
        let uffd = match &mode {
            CaptureMode::Live => {
                let uffd = self.protection.clone();
                Some(uffd.expect("the caller checked that pages can be protected"))
            }
            CaptureMode::Paused { .. } => None,
        };
        let (memory, address, length) = (self.memory, self.address, self.length.get());
        let worker = Worker::start(Source { memory, address, length, uffd }, ledger)?;
        Ok(PreparedCapture { target: self, mode, worker, armed: None })
    }

    /// Whether [`CaptureMode::Live`] is possible.
    #[must_use]
    pub fn can_protect(&self) -> bool {
        self.protection.is_some()
    }

    /// Bytes of the pages that are private to the VMM now.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn dirty_bytes(&mut self) -> Result<ByteCount, CaptureError> {
        let runs = self.scan(Swapped::Included)?;
        Ok(runs.iter().map(|run| run.bytes()).sum())
    }

    fn pages(&self) -> PageCount {
        PageCount::new(self.length.get() / forkd_types::PAGE_BYTES)
    }

    fn scan(&mut self, swapped: Swapped) -> Result<Vec<PageRun>, CaptureError> {
        self.ranges.clear();
        let range = AddressRange { start: self.address, end: self.address + self.length.get() };
        self.scanner.scan(range, swapped, &mut self.ranges).map_err(CaptureError::Scan)?;
        let to_run = |range: &AddressRange| PageRun {
            start: PageIndex::containing(range.start - self.address),
            count: PageCount::new((range.end - range.start) / forkd_types::PAGE_BYTES),
        };
        Ok(self.ranges.iter().map(to_run).collect())
    }

    fn protect(&self, runs: &[PageRun]) -> Result<(), CaptureError> {
        let Some(uffd) = &self.protection else { return Ok(()) };
        for run in runs {
            uffd.protect(self.address + run.start.byte_offset(), run.bytes().get())?;
        }
        Ok(())
    }

    fn bitmap(&self, runs: &[PageRun]) -> PageBitmap {
        let mut set = PageBitmap::new(self.pages());
        runs.iter().for_each(|run| set.insert_run(*run));
        set
    }
}

/// A capture whose thread is ready. The guest runs.
#[derive(Debug)]
pub struct PreparedCapture {
    target: CaptureTarget,
    mode: CaptureMode,
    worker: Worker,
    /// The dirty set as far as it was known when all of guest RAM was protected.
    armed: Option<PageBitmap>,
}

impl PreparedCapture {
    /// Takes out of the pause window what grows with guest RAM and with the dirty set: all of guest
    /// RAM is protected while the guest runs, and then scanned. From then on every page that is
    /// written is noted, at the price of one fault, so that the window has to do with those pages
    /// alone. To be called right before the pause.
    ///
    /// Does nothing where the kernel cannot protect pages that are not present, or where the host
    /// has swap: a marker of protection and a page in swap cannot be told apart. The window then
    /// scans.
    ///
    /// # Errors
    /// When the VMM is gone. All protection is lifted when `self` is dropped.
    pub fn arm(&mut self) -> Result<(), CaptureError> {
        let Some(uffd) = self.target.protection.clone() else { return Ok(()) };
        if self.mode != CaptureMode::Live || !uffd.protects_unpopulated() || host_has_swap() {
            return Ok(());
        }
        uffd.protect(self.target.address, self.target.length.get())?;
        let runs = self.target.scan(Swapped::Excluded)?;
        self.armed = Some(self.target.bitmap(&runs));
        Ok(())
    }

    /// Determines the dirty set and, for a live capture, protects it. To be called while the guest
    /// is paused, after its device state was saved (saving may write guest memory).
    ///
    /// # Errors
    /// When the VMM is gone. All protection has been lifted then.
    pub fn close_dirty_set(mut self) -> Result<ClosedCapture, CaptureError> {
        let mut stats = CaptureStats::default();
        let begun = Instant::now();
        let phase = self.worker.phase();
        let mut phase = phase.lock();
        let (wanted, dirty) = match (self.armed.take(), &mut *phase) {
            (Some(mut wanted), Phase::Watching { written }) => {
                written.sort_unstable();
                written.dedup();
                stats.written_since_armed = PageCount::new(written.len() as u64);
                self.target.protect(&runs_of(written))?;
                written.iter().for_each(|page| wanted.insert(*page));
                (wanted, None)
            }
            _ => {
                let runs = self.target.scan(Swapped::Included)?;
                let mut wanted = self.target.bitmap(&runs);
                let dirty = wanted.count();
                match &self.mode {
                    CaptureMode::Live => self.target.protect(&runs)?,
                    CaptureMode::Paused { also } => {
                        also.iter().for_each(|run| wanted.insert_run(*run));
                    }
                }
                (wanted, Some(dirty))
            }
        };
        let wanted = Arc::new(wanted);
        *phase = Phase::Capturing { wanted: Arc::clone(&wanted) };
        drop(phase);
        stats.protect = begun.elapsed();
        Ok(ClosedCapture { target: self.target, worker: self.worker, wanted, dirty, stats })
    }
}

/// A capture whose pages are known and cannot change any more.
#[derive(Debug)]
pub struct ClosedCapture {
    target: CaptureTarget,
    worker: Worker,
    wanted: Arc<PageBitmap>,
    /// Size of the dirty set where it is not that of `wanted`.
    dirty: Option<PageCount>,
    stats: CaptureStats,
}

impl ClosedCapture {
    /// Copies all pages to the sink. A live capture lets the guest run meanwhile; for the other
    /// kind the guest must still be paused.
    ///
    /// # Errors
    /// When the VMM dies, the sink fails, or [`limit::SWEEP_DEADLINE`] passes. All protection has
    /// been lifted then.
    pub fn sweep(self) -> Result<Captured, CaptureError> {
        let mut stats = self.stats;
        stats.dirty = self.dirty.unwrap_or_else(|| self.wanted.count());
        let done = self.worker.sweep(limit::SWEEP_DEADLINE)?;
        stats.stored = done.ledger.stored_count();
        done.faults.summarize(&mut stats);
        Ok(Captured { target: self.target, pages: done.ledger.into_pages(), stats })
    }
}

/// Ascending pages as runs.
fn runs_of(pages: &[PageIndex]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.end() == *page => last.count += PageCount::new(1),
            _ => runs.push(PageRun { start: *page, count: PageCount::new(1) }),
        }
    }
    runs
}

/// Whether anonymous pages of any process can be in swap. Unknown counts as yes.
fn host_has_swap() -> bool {
    // A line of titles, then one line for each area.
    std::fs::read_to_string("/proc/swaps").map_or(true, |areas| areas.lines().count() > 1)
}

/// A finished capture.
#[derive(Debug)]
pub struct Captured {
    /// The guest's memory, for the next capture.
    pub target: CaptureTarget,
    /// Which pages there were.
    pub pages: CapturedPages,
    /// What it cost.
    pub stats: CaptureStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_become_one_run() {
        let pages = [1, 2, 3, 7, 9, 10].map(PageIndex::new);
        let want = [PageRun::new(1, 3), PageRun::new(7, 1), PageRun::new(9, 2)];
        assert_eq!(runs_of(&pages), want);
        assert_eq!(runs_of(&[]), []);
    }
}
