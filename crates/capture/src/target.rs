//! The states of a capture, as types.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use forkd_sys::pagemap::{AddressRange, PrivatePageScanner};
use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{ByteCount, PageCount, PageIndex, PageRun, limit};
use rustix::process::Pid;

use crate::ledger::{CaptureStats, CapturedPages, Ledger};
use crate::worker::{Source, Worker};
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
        let pages = PageCount::new(self.length.get() / forkd_types::PAGE_BYTES);
        let ledger = Ledger::new(pages, sink);
        let uffd = match &mode {
            CaptureMode::Live => {
                let uffd = self.protection.clone();
                Some(uffd.expect("the caller checked that pages can be protected"))
            }
            CaptureMode::Paused { .. } => None,
        };
        let (memory, address, length) = (self.memory, self.address, self.length.get());
        let worker = Worker::start(Source { memory, address, length, uffd }, ledger)?;
        Ok(PreparedCapture { target: self, mode, worker })
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
        let runs = self.scan()?;
        Ok(runs.iter().map(|run| run.bytes()).sum())
    }

    fn scan(&mut self) -> Result<Vec<PageRun>, CaptureError> {
        self.ranges.clear();
        let range = AddressRange { start: self.address, end: self.address + self.length.get() };
        self.scanner.scan(range, &mut self.ranges).map_err(CaptureError::Scan)?;
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
}

/// A capture whose thread is ready. The guest runs.
#[derive(Debug)]
pub struct PreparedCapture {
    target: CaptureTarget,
    mode: CaptureMode,
    worker: Worker,
}

impl PreparedCapture {
    /// Determines the dirty set and, for a live capture, protects it. To be called while the guest
    /// is paused, after its device state was saved (saving may write guest memory).
    ///
    /// # Errors
    /// When the VMM is gone. All protection has been lifted then.
    pub fn close_dirty_set(mut self) -> Result<ClosedCapture, CaptureError> {
        let begun = Instant::now();
        let mut runs = self.target.scan()?;
        let scan = begun.elapsed();
        let dirty = runs.iter().map(|run| run.count).sum();
        let begun = Instant::now();
        match &self.mode {
            CaptureMode::Live => self.target.protect(&runs)?,
            CaptureMode::Paused { also } => runs = union(&runs, also),
        }
        let stats =
            CaptureStats { dirty, scan, protect: begun.elapsed(), ..CaptureStats::default() };
        Ok(ClosedCapture { target: self.target, worker: self.worker, runs, stats })
    }
}

/// A capture whose pages are known and cannot change any more.
#[derive(Debug)]
pub struct ClosedCapture {
    target: CaptureTarget,
    worker: Worker,
    runs: Vec<PageRun>,
    stats: CaptureStats,
}

impl ClosedCapture {
    /// Copies all pages to the sink. A live capture lets the guest run meanwhile; for the other kind
    /// the guest must still be paused.
    ///
    /// # Errors
    /// When the VMM dies, the sink fails, or [`limit::SWEEP_DEADLINE`] passes. All protection has
    /// been lifted then.
    pub fn sweep(self) -> Result<Captured, CaptureError> {
        let done = self.worker.sweep(self.runs, limit::SWEEP_DEADLINE)?;
        let mut stats = self.stats;
        stats.stored = done.ledger.stored_count();
        done.faults.summarize(&mut stats);
        Ok(Captured { target: self.target, pages: done.ledger.into_pages(), stats })
    }

    /// Figures so far.
    #[must_use]
    pub fn stats(&self) -> &CaptureStats {
        &self.stats
    }
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

/// The union of two ascending lists of runs.
fn union(a: &[PageRun], b: &[PageRun]) -> Vec<PageRun> {
    let mut all: Vec<PageRun> = a.iter().chain(b).copied().collect();
    all.sort_by_key(|run| run.start);
    let mut merged: Vec<PageRun> = Vec::with_capacity(all.len());
    for run in all {
        match merged.last_mut() {
            Some(last) if run.start <= last.end() => {
                let end = last.end().max(run.end());
                last.count = PageCount::new(end.get() - last.start.get());
            }
            _ => merged.push(run),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_merges_overlap_and_touch() {
        let a = [PageRun::new(0, 4), PageRun::new(10, 2)];
        let b = [PageRun::new(2, 3), PageRun::new(5, 1), PageRun::new(20, 1)];
        let want = [PageRun::new(0, 6), PageRun::new(10, 2), PageRun::new(20, 1)];
        assert_eq!(union(&a, &b), want);
        assert_eq!(union(&[], &[]), []);
    }
}
