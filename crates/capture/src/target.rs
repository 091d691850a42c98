//! The states of a capture, as types.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_sys::pagemap::{AddressRange, PrivatePageScanner, ScanMethod, Swapped};
use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::{UffdError, Userfaultfd};
use forkd_types::{ByteCount, PageCount, PageIndex, PageRun};
use rustix::process::Pid;

use crate::bitmap::PageBitmap;
use crate::features::HostFeatures;
use crate::ledger::{CaptureStats, CapturedPages, Ledger, Unchanged};
use crate::sweeper::{FLAW_INTERVAL, Job, joined};
use crate::worker::{Protect, Source, Worker};
use crate::{CaptureError, Flaw, PageSink, PagesBelow};

/// The memory of one guest: where it is, and how its dirty pages are found and protected. Kept with
/// the VM; a capture borrows it and gives it back.
pub struct CaptureTarget {
    source: Source,
    scanner: PrivatePageScanner,
    features: HostFeatures,
    worker: Worker,
    /// Reused, so that a scan in the pause window does not allocate.
    ranges: Vec<AddressRange>,
}

impl fmt::Debug for CaptureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureTarget")
            .field("address", &format_args!("{:#x}", self.source.address))
            .field("length", &self.source.length)
            .finish_non_exhaustive()
    }
}

/// Whether the target can be write-protected.
#[derive(Debug)]
pub enum WriteProtection {
    /// Through this userfaultfd, made in the VMM.
    Userfaultfd(Userfaultfd),
    /// Not on this host: only [`Copy::BeforeResume`] is possible.
    Unavailable,
}

/// When pages are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// Before the guest resumes.
    BeforeResume,
    /// After the guest resumed; pages are write-protected until they are copied.
    AfterResume,
}

/// One capture.
pub struct CapturePlan {
    /// When pages are copied.
    pub copy: Copy,
    /// Pages to capture after the dirty ones: those of the layers below, when the snapshot shall
    /// depend on no other. Only with [`Copy::BeforeResume`].
    pub also: Vec<PageRun>,
    /// Where they go.
    pub sink: Box<dyn PageSink>,
    /// What they are compared with. Unchanged pages are left out, unless the capture is to be
    /// complete (`also`): then they are only counted.
    pub below: Box<dyn PagesBelow>,
    /// A defect to build in; see [`Flaw`].
    pub flaw: Option<Flaw>,
}

impl fmt::Debug for CapturePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturePlan").field("copy", &self.copy).finish_non_exhaustive()
    }
}

/// How long another userfaultfd may still have the memory. It lets go when its last descriptor is
/// closed, and a process that is being started has a copy of each until its program begins.
const REGISTER_DEADLINE: Duration = Duration::from_secs(1);
/// Between two attempts.
const REGISTER_INTERVAL: Duration = Duration::from_millis(1);
/// Ranges that a first scan can find without growing its buffer: 1.5 MiB.
const RANGES_RESERVED: usize = 64 * 1024;
/// Bytes scanned with one call outside the pause, so that a kernel without preemption lets others
/// run.
const SCAN_STRETCH_BYTES: u64 = 64 << 20;

/// Registers memory, once an earlier userfaultfd of it is gone.
fn register(uffd: &Userfaultfd, address: u64, length: ByteCount) -> Result<(), UffdError> {
    let begun = Instant::now();
    loop {
        match uffd.register(address, length.get()) {
            Err(UffdError::Call { source, .. })
                if source.kind() == io::ErrorKind::ResourceBusy
                    && begun.elapsed() < REGISTER_DEADLINE =>
            {
                std::thread::sleep(REGISTER_INTERVAL);
            }
            other => return other,
        }
    }
}

impl CaptureTarget {
    /// The guest RAM at `[address, address + length)` of process `pid`.
    ///
    /// # Errors
    /// When the process's page tables cannot be read, the range not be registered, or the thread
    /// not be started.
    pub fn new(
        pid: Pid,
        address: u64,
        length: ByteCount,
        protection: WriteProtection,
        features: HostFeatures,
    ) -> Result<Self, CaptureError> {
        let scanner = if features.pagemap_scan {
            PrivatePageScanner::of(pid)
        } else {
            PrivatePageScanner::with_method(pid, ScanMethod::Words)
        };
        let uffd = match protection {
            WriteProtection::Userfaultfd(uffd) => {
                register(&uffd, address, length)?;
                Some(Arc::new(uffd))
            }
            WriteProtection::Unavailable => None,
        };
        let memory = RemoteMemory::of(pid);
        let source = Source { memory, address, length: length.get(), uffd };
        Ok(Self {
            scanner: scanner.map_err(CaptureError::Scan)?,
            features,
            worker: Worker::start(source.clone())?,
            source,
            ranges: Vec::with_capacity(RANGES_RESERVED),
        })
    }

    /// Gets ready for a capture. The guest runs on.
    ///
    /// # Errors
    /// When the VMM is gone.
    ///
    /// # Panics
    /// [`Copy::AfterResume`] without write protection, or of pages that are not dirty, is a mistake
    /// of the caller's.
    pub fn prepare(self, plan: CapturePlan) -> Result<PreparedCapture, CaptureError> {
        let possible =
            plan.copy == Copy::BeforeResume || self.can_protect() && plan.also.is_empty();
        assert!(possible, "the caller checks what can be copied after the guest resumed");
        let (copy, flaw) = (plan.copy, plan.flaw);
        Ok(PreparedCapture {
            target: self,
            plan: Some(plan),
            copy,
            flaw,
            also: Vec::new(),
            armed: false,
        })
    }

    /// Whether [`Copy::AfterResume`] is possible.
    #[must_use]
    pub fn can_protect(&self) -> bool {
        self.source.uffd.is_some()
    }

    /// Whether the target can still be used: its thread serves.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.worker.is_alive()
    }

    /// Whether the next capture finds what was written since the last one; else it finds all pages
    /// that are private to the VMM.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.worker.watch().lock().tracks
    }

    /// Bytes that a capture would look at now.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn dirty_bytes(&mut self) -> Result<ByteCount, CaptureError> {
        let watch = self.worker.watch().lock();
        if watch.tracks {
            return Ok(watch.open.count().bytes());
        }
        drop(watch);
        let runs = self.scan(Swapped::Included, SCAN_STRETCH_BYTES)?;
        Ok(runs.iter().map(|run| run.bytes()).sum())
    }

    fn pages(&self) -> PageCount {
        self.source.pages()
    }

    /// Private pages, scanned with calls of `stretch` bytes.
    fn scan(&mut self, swapped: Swapped, stretch: u64) -> Result<Vec<PageRun>, CaptureError> {
        self.ranges.clear();
        let (mut at, end) = (self.source.address, self.source.address + self.source.length);
        while at < end {
            let range = AddressRange { start: at, end: end.min(at.saturating_add(stretch)) };
            self.scanner.scan(range, swapped, &mut self.ranges).map_err(CaptureError::Scan)?;
            at = range.end;
        }
        let to_run = |range: &AddressRange| PageRun {
            start: PageIndex::containing(range.start - self.source.address),
            count: PageCount::new((range.end - range.start) / forkd_types::PAGE_BYTES),
        };
        Ok(self.ranges.iter().map(to_run).collect())
    }

    fn protect(&self, runs: &[PageRun]) -> Result<(), CaptureError> {
        let Some(uffd) = &self.source.uffd else { return Ok(()) };
        for run in joined(runs) {
            uffd.protect(self.source.address + run.start.byte_offset(), run.bytes().get())?;
        }
        Ok(())
    }
}

/// A capture that has begun. The guest runs.
#[derive(Debug)]
pub struct PreparedCapture {
    target: CaptureTarget,
    /// Absent once the thread has it.
    plan: Option<CapturePlan>,
    copy: Copy,
    flaw: Option<Flaw>,
    also: Vec<PageRun>,
    /// All of guest RAM is protected, and the dirty set known but for what is written now.
    armed: bool,
}

impl PreparedCapture {
    /// Takes out of the pause window what grows with guest RAM and with the dirty set: while the
    /// guest runs, everything that was written since the last capture is protected again (by the
    /// first capture, all of guest RAM, which is then scanned). From then on every page that is
    /// written is noted, at the price of one fault, so that the window has to do with those pages
    /// alone. To be called right before the pause, exactly once.
    ///
    /// Protects nothing where faults cannot tell what is written; the window then scans. See
    /// [`HostFeatures`].
    ///
    /// # Errors
    /// When the VMM is gone. All protection is lifted when `self` is dropped.
    pub fn arm(&mut self) -> Result<(), CaptureError> {
        let Some(plan) = self.plan.take() else { return Ok(()) };
        let target = &mut self.target;
        let complete = !plan.also.is_empty();
        let unchanged = if complete { Unchanged::Counted } else { Unchanged::Dropped };
        let ledger = Ledger::new(target.pages(), plan.sink, plan.below, unchanged);
        self.also = plan.also;
        let job = Job { ledger, copy: plan.copy, flaw: plan.flaw };
        let can_track =
            target.source.uffd.as_ref().is_some_and(|uffd| target.features.can_track(uffd));
        if !can_track {
            return target.worker.begin(job, Protect::Nothing);
        }
        if target.tracks() {
            target.worker.begin(job, Protect::Opened)?;
        } else {
            target.worker.begin(job, Protect::Everything)?;
            let runs = target.scan(Swapped::Excluded, SCAN_STRETCH_BYTES)?;
            let mut dirty = PageBitmap::new(target.pages());
            runs.iter().for_each(|run| dirty.insert_run(*run));
            target.worker.watch().lock().dirty = dirty;
        }
        self.armed = true;
        Ok(())
    }

    /// Determines the dirty set and protects it. To be called while the guest is paused, after its
    /// device state was saved (saving may write guest memory), and after [`Self::arm`].
    ///
    /// # Errors
    /// When the VMM is gone. All protection has been lifted then.
    pub fn close_dirty_set(mut self) -> Result<ClosedCapture, CaptureError> {
        let mut stats = CaptureStats::default();
        let begun = Instant::now();
        if self.armed {
            self.close_armed(&mut stats)?;
        } else {
            self.close_by_scan()?;
        }
        stats.protect = begun.elapsed();
        Ok(ClosedCapture { target: self.target, stats })
    }

    fn close_armed(&mut self, stats: &mut CaptureStats) -> Result<(), CaptureError> {
        let target = &self.target;
        let mut watch = target.worker.watch().lock();
        let mut recent = watch.take_recent();
        if Flaw::StaleDirtySet.is_built_in(self.flaw) {
            let offset = watch.dirty.count().as_usize() % FLAW_INTERVAL;
            recent.retain(|run| run.start.as_usize() % FLAW_INTERVAL != offset);
        }
        target.protect(&recent)?;
        for run in &recent {
            stats.written_since_armed += run.count;
            watch.dirty.insert_run(*run);
        }
        let wanted = std::mem::replace(&mut watch.dirty, PageBitmap::new(PageCount::ZERO));
        watch.wanted = Some(Arc::new(wanted));
        watch.also = self.also();
        Ok(())
    }

    fn also(&self) -> Option<Arc<PageBitmap>> {
        if self.also.is_empty() {
            return None;
        }
        let mut pages = PageBitmap::new(self.target.pages());
        self.also.iter().for_each(|run| pages.insert_run(*run));
        Some(Arc::new(pages))
    }

    fn close_by_scan(&mut self) -> Result<(), CaptureError> {
        let runs = self.target.scan(Swapped::Included, u64::MAX)?;
        let mut wanted = PageBitmap::new(self.target.pages());
        runs.iter().for_each(|run| wanted.insert_run(*run));
        let mut watch = self.target.worker.watch().lock();
        if self.copy == Copy::AfterResume {
            self.target.protect(&runs)?;
        }
        watch.wanted = Some(Arc::new(wanted));
        watch.also = self.also();
        Ok(())
    }
}

/// A capture whose pages are known and cannot change any more.
#[derive(Debug)]
pub struct ClosedCapture {
    target: CaptureTarget,
    stats: CaptureStats,
}

impl ClosedCapture {
    /// Copies all pages to the sink. [`Copy::AfterResume`] lets the guest run meanwhile; otherwise
    /// it must still be paused.
    ///
    /// # Errors
    /// When the VMM dies, the sink fails, or [`limit::SWEEP_DEADLINE`] passes. All protection has
    /// been lifted then.
    ///
    /// [`limit::SWEEP_DEADLINE`]: forkd_types::limit::SWEEP_DEADLINE
    pub fn sweep(mut self) -> Result<Captured, CaptureError> {
        let swept = self.target.worker.sweep()?;
        let CaptureStats { written_since_armed, protect, .. } = self.stats;
        let stats = CaptureStats { written_since_armed, protect, ..swept.stats };
        Ok(Captured { target: self.target, pages: swept.pages, stats })
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
