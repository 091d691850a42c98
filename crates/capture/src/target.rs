//! The states of a capture, as types: each step consumes the state before it.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_sys::pagemap::{AddressRange, PrivatePageScanner, ScanMethod, Swapped};
use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::{UffdError, Userfaultfd};
use forkd_types::{ByteCount, GuestStopped, PageCount, PageIndex, PageRun};
use rustix::process::Pid;

use crate::bitmap::PageBitmap;
use crate::command::{Job, Protect};
use crate::features::HostFeatures;
use crate::ledger::{CaptureStats, CapturedPages, Ledger, Unchanged};
use crate::run::joined;
use crate::source::Source;
use crate::worker::Worker;
use crate::{CaptureError, CapturePlan, CaptureProbe, Copy};

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
    /// The guest RAM at `[address, address + length)` of process `pid`, whose page tables are open.
    ///
    /// # Errors
    /// When the range cannot be registered, or the thread not be started.
    pub fn new(
        pid: Pid,
        page_tables: File,
        address: u64,
        length: ByteCount,
        protection: WriteProtection,
        features: HostFeatures,
    ) -> Result<Self, CaptureError> {
        let scanner = if features.pagemap_scan {
            PrivatePageScanner::with(page_tables)
        } else {
            PrivatePageScanner::with_method(page_tables, ScanMethod::Words)
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
            scanner,
            features,
            worker: Worker::start(source.clone())?,
            source,
            ranges: Vec::with_capacity(RANGES_RESERVED),
        })
    }

    /// Begins a capture. The guest runs on.
    ///
    /// # Panics
    /// [`Copy::AfterResume`] without write protection, or of pages that are not dirty, is a mistake
    /// of the caller's.
    #[must_use]
    pub fn prepare(self, plan: CapturePlan) -> PreparedCapture {
        let possible =
            plan.copy == Copy::BeforeResume || self.can_protect() && plan.also.is_empty();
        assert!(possible, "the caller checks what can be copied after the guest resumed");
        PreparedCapture { target: self, plan }
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

    fn protect(&self, runs: Vec<PageRun>) -> Result<(), CaptureError> {
        runs.into_iter().try_for_each(|run| Ok(self.source.protect(run)?))
    }

    fn bitmap(&self, runs: &[PageRun]) -> PageBitmap {
        let mut pages = PageBitmap::new(self.pages());
        runs.iter().for_each(|run| pages.insert_run(*run));
        pages
    }

    /// Hands the capture to the thread, and protects what it can while the guest runs.
    fn arm(&mut self, job: Job) -> Result<DirtySet, CaptureError> {
        let uffd = self.source.uffd.as_ref();
        if !uffd.is_some_and(|uffd| self.features.can_track(uffd)) {
            self.worker.begin(job, Protect::Nothing)?;
            return Ok(DirtySet::Unknown);
        }
        if self.tracks() {
            self.worker.begin(job, Protect::Opened)?;
        } else {
            self.worker.begin(job, Protect::Everything)?;
            let runs = self.scan(Swapped::Excluded, SCAN_STRETCH_BYTES)?;
            let dirty = self.bitmap(&runs);
            self.worker.watch().lock().dirty = dirty;
        }
        Ok(DirtySet::Watched)
    }
}

/// A capture that has begun. The guest runs.
#[derive(Debug)]
pub struct PreparedCapture {
    target: CaptureTarget,
    plan: CapturePlan,
}

impl PreparedCapture {
    /// Takes out of the pause window what grows with guest RAM and with the dirty set: while the
    /// guest runs, everything that was written since the last capture is protected again (by the
    /// first capture, all of guest RAM, which is then scanned). From then on every page that is
    /// written is noted, at the price of one fault, so that the window has to do with those pages
    /// alone. To be called right before the pause.
    ///
    /// Protects nothing where faults cannot tell what is written; the window then scans. See
    /// [`HostFeatures`].
    ///
    /// # Errors
    /// When the VMM is gone. All protection has been lifted then.
    pub fn arm(self) -> Result<ArmedCapture, CaptureError> {
        let Self { mut target, plan: CapturePlan { copy, also, sink, below, probe } } = self;
        let unchanged = if also.is_empty() { Unchanged::Dropped } else { Unchanged::Counted };
        let ledger = Ledger::new(target.pages(), sink, below, unchanged);
        let dirty_set = target.arm(Job { ledger, copy, probe: Arc::clone(&probe) })?;
        let also = (!also.is_empty()).then(|| Arc::new(target.bitmap(&also)));
        Ok(ArmedCapture { target, copy, also, probe, dirty_set })
    }
}

/// What is known of the dirty set before the pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirtySet {
    /// All of it but for what is written now: all of guest RAM is protected.
    Watched,
    /// Nothing: faults cannot tell on this host, and the window scans.
    Unknown,
}

/// A capture that has protected all that it can while the guest runs.
pub struct ArmedCapture {
    target: CaptureTarget,
    copy: Copy,
    also: Option<Arc<PageBitmap>>,
    probe: Arc<dyn CaptureProbe>,
    dirty_set: DirtySet,
}

impl fmt::Debug for ArmedCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArmedCapture").field("dirty_set", &self.dirty_set).finish_non_exhaustive()
    }
}

impl ArmedCapture {
    /// Determines the dirty set and protects it. `stopped` is not looked at: who has it cannot call
    /// this too early. The device state is saved before, because saving may write guest memory.
    ///
    /// # Errors
    /// When the VMM is gone. All protection has been lifted then.
    pub fn close_dirty_set(
        mut self,
        stopped: &impl GuestStopped,
    ) -> Result<ClosedCapture, CaptureError> {
        let _ = stopped;
        let mut stats = CaptureStats::default();
        let begun = Instant::now();
        match self.dirty_set {
            DirtySet::Watched => self.close_watched(&mut stats)?,
            DirtySet::Unknown => self.close_by_scan()?,
        }
        stats.protect = begun.elapsed();
        Ok(ClosedCapture { target: self.target, stats })
    }

    fn close_watched(&mut self, stats: &mut CaptureStats) -> Result<(), CaptureError> {
        let target = &self.target;
        let mut watch = target.worker.watch().lock();
        let recent = watch.take_recent();
        let mut writable = joined(&recent);
        self.probe.before_protect(&mut writable);
        target.protect(writable)?;
        for run in &recent {
            stats.written_since_armed += run.count;
            watch.dirty.insert_run(*run);
        }
        let wanted = std::mem::replace(&mut watch.dirty, PageBitmap::new(PageCount::ZERO));
        watch.wanted = Some(Arc::new(wanted));
        watch.also = self.also.take();
        Ok(())
    }

    fn close_by_scan(&mut self) -> Result<(), CaptureError> {
        let runs = self.target.scan(Swapped::Included, u64::MAX)?;
        let wanted = self.target.bitmap(&runs);
        let mut watch = self.target.worker.watch().lock();
        if self.copy == Copy::AfterResume {
            self.target.protect(joined(&runs))?;
        }
        watch.wanted = Some(Arc::new(wanted));
        watch.also = self.also.take();
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
