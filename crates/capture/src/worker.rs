//! The thread that serves write faults and sweeps.
//!
//! Until the dirty set is closed it lets every write pass and notes the page. From then on the
//! order within one page is: copy, account, release. So a wanted page that the ledger does not
//! have is still protected, and what the sweep copies is what the page held at the branch point.
//!
//! The one lock is taken for a batch of faults, and once by the thread that closes the dirty set,
//! which waits for nobody while it holds it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{PAGE_BYTES, PageCount, PageIndex, PageRun, limit};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::CaptureError;
use crate::bitmap::PageBitmap;
use crate::ledger::{CaptureStats, Ledger};

/// Pages copied between two looks at the fault queue.
const CHUNK_PAGES: u64 = limit::SWEEP_CHUNK_BYTES as u64 / PAGE_BYTES;
/// Pages released with one call at most, 16 MiB: the kernel holds page-table locks meanwhile.
const STRETCH_PAGES: u64 = 4096;

/// What the thread captures from.
pub(crate) struct Source {
    pub(crate) memory: RemoteMemory,
    /// Where guest RAM begins in that memory.
    pub(crate) address: u64,
    /// Bytes of guest RAM.
    pub(crate) length: u64,
    /// Absent when the guest stays paused.
    pub(crate) uffd: Option<Arc<Userfaultfd>>,
}

/// What a write fault means.
pub(crate) enum Phase {
    /// The dirty set is open: a page that is written belongs to it.
    Watching {
        /// Pages written since they were protected, in the order of the writes.
        written: Vec<PageIndex>,
    },
    /// The dirty set is closed: these pages are wanted as they are now, the others are not.
    Capturing {
        /// The dirty set.
        wanted: Arc<PageBitmap>,
    },
}

/// The phase, shared between the thread and whoever closes the dirty set.
#[derive(Clone)]
pub(crate) struct SharedPhase(Arc<Mutex<Phase>>);

impl SharedPhase {
    fn new() -> Self {
        let written = Vec::with_capacity(FAULTS_RESERVED);
        Self(Arc::new(Mutex::new(Phase::Watching { written })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Faults that can be noted without allocating.
const FAULTS_RESERVED: usize = 16 * 1024;

/// Handle of the thread. Dropping it makes the thread give up, lift all protection, and end.
pub(crate) struct Worker {
    /// Carries the one order: sweep what is wanted. Closed without one: give up.
    orders: Option<Sender<()>>,
    phase: SharedPhase,
    bell: Arc<OwnedFd>,
    abandoned: Arc<AtomicBool>,
    results: Receiver<Result<Swept, CaptureError>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Worker")
    }
}

/// What a sweep leaves.
pub(crate) struct Swept {
    pub(crate) ledger: Ledger,
    pub(crate) faults: FaultTimes,
}

/// Service times of write faults.
#[derive(Default)]
pub(crate) struct FaultTimes(Vec<Duration>);

impl FaultTimes {
    pub(crate) fn summarize(mut self, stats: &mut CaptureStats) {
        self.0.sort_unstable();
        stats.faults = self.0.len() as u64;
        stats.fault_service_median = self.0.get(self.0.len() / 2).copied();
        stats.fault_service_max = self.0.last().copied();
    }
}

impl Worker {
    pub(crate) fn start(source: Source, ledger: Ledger) -> Result<Self, CaptureError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::Thread(errno.into()))?;
        let bell = Arc::new(bell);
        let abandoned = Arc::new(AtomicBool::new(false));
        let phase = SharedPhase::new();
        let (orders, inbox) = channel();
        let (outbox, results) = channel();
        let sweeper = Sweeper {
            source,
            swept: Swept { ledger, faults: FaultTimes(Vec::with_capacity(FAULTS_RESERVED)) },
            addresses: Vec::with_capacity(1024),
            buffer: vec![0; limit::SWEEP_CHUNK_BYTES],
            abandoned: Arc::clone(&abandoned),
            phase: phase.clone(),
        };
        let heard = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("forkd-capture".to_owned())
            .spawn(move || {
                // Nobody receives when the handle has been dropped: then nobody needs the result.
                outbox.send(sweeper.run(&heard, &inbox)).ok();
            })
            .map_err(CaptureError::Thread)?;
        Ok(Self { orders: Some(orders), phase, bell, abandoned, results, thread: Some(thread) })
    }

    /// What a fault means, to be changed when the dirty set is closed.
    pub(crate) fn phase(&self) -> SharedPhase {
        self.phase.clone()
    }

    /// Sweeps the wanted pages, lifts all protection, and ends the thread.
    pub(crate) fn sweep(mut self, deadline: Duration) -> Result<Swept, CaptureError> {
        if let Some(orders) = self.orders.take() {
            // A thread that has ended already has left its error in `results`.
            orders.send(()).ok();
        }
        self.ring();
        match self.results.recv_timeout(deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(CaptureError::Deadline(deadline)),
            Err(RecvTimeoutError::Disconnected) => Err(CaptureError::Died),
        }
    }

    fn ring(&self) {
        // Fails only when the counter is at its maximum: then it rings already.
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.orders = None;
        self.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the capture thread panicked");
        }
    }
}

struct Sweeper {
    source: Source,
    swept: Swept,
    addresses: Vec<u64>,
    buffer: Vec<u8>,
    abandoned: Arc<AtomicBool>,
    phase: SharedPhase,
}

impl Sweeper {
    fn run(mut self, bell: &OwnedFd, inbox: &Receiver<()>) -> Result<Swept, CaptureError> {
        match self.serve_then_sweep(bell, inbox) {
            Ok(()) => Ok(self.swept),
            Err(error) => {
                self.release_everything();
                Err(error)
            }
        }
    }

    fn serve_then_sweep(
        &mut self,
        bell: &OwnedFd,
        inbox: &Receiver<()>,
    ) -> Result<(), CaptureError> {
        loop {
            match inbox.try_recv() {
                Ok(()) => break,
                Err(TryRecvError::Disconnected) => return Err(CaptureError::Abandoned),
                Err(TryRecvError::Empty) => {}
            }
            self.wait(bell)?;
            self.serve_faults()?;
        }
        let wanted = match &*self.phase.lock() {
            Phase::Capturing { wanted } => Arc::clone(wanted),
            Phase::Watching { .. } => return Err(CaptureError::Abandoned),
        };
        self.sweep_all(&wanted.runs())
    }

    /// Captures `runs` in stretches of guest RAM, each with no more dirty bytes than a chunk, and
    /// releases each stretch, dirty and clean pages alike, with one call.
    fn sweep_all(&mut self, runs: &[PageRun]) -> Result<(), CaptureError> {
        let pages = self.source.length / PAGE_BYTES;
        let mut left = runs.iter().copied();
        let mut next = left.next();
        let mut at = 0;
        while at < pages {
            if self.abandoned.load(Ordering::Relaxed) {
                return Err(CaptureError::Abandoned);
            }
            self.serve_faults()?;
            let limit = (at + STRETCH_PAGES).min(pages);
            let (mut end, mut budget) = (limit, CHUNK_PAGES);
            while let Some(run) = next.filter(|run| run.start.get() < limit) {
                let count = run.count.get().min(budget).min(limit - run.start.get());
                self.capture_run(PageRun::new(run.start.get(), count))?;
                budget -= count;
                next = if count < run.count.get() {
                    Some(PageRun::new(run.start.get() + count, run.count.get() - count))
                } else {
                    left.next()
                };
                if budget == 0 {
                    end = run.start.get() + count;
                    break;
                }
            }
            if let Some(uffd) = &self.source.uffd {
                let stretch = PageRun::new(at, end - at);
                let address = self.source.address + stretch.start.byte_offset();
                uffd.release(address, stretch.bytes().get())?;
            }
            at = end;
        }
        Ok(())
    }

    /// Sleeps until there is a fault or the bell rings.
    fn wait(&self, bell: &OwnedFd) -> Result<(), CaptureError> {
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        if let Some(uffd) = &self.source.uffd {
            fds.push(PollFd::new(uffd.as_ref(), PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(CaptureError::Thread(errno.into())),
        }
        if fds.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL)) {
            return Err(CaptureError::Thread(rustix::io::Errno::SRCH.into()));
        }
        Ok(())
    }

    fn serve_faults(&mut self) -> Result<(), CaptureError> {
        let Some(uffd) = self.source.uffd.clone() else { return Ok(()) };
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        uffd.read_write_faults(&mut addresses)?;
        if !addresses.is_empty() {
            let read_at = Instant::now();
            let phase = self.phase.clone();
            let mut phase = phase.lock();
            for address in &addresses {
                self.serve_fault(&uffd, &mut phase, *address)?;
                self.swept.faults.0.push(read_at.elapsed());
            }
        }
        self.addresses = addresses;
        Ok(())
    }

    fn serve_fault(
        &mut self,
        uffd: &Userfaultfd,
        phase: &mut Phase,
        address: u64,
    ) -> Result<(), CaptureError> {
        let page = PageIndex::containing(address.wrapping_sub(self.source.address));
        match phase {
            Phase::Watching { written } => written.push(page),
            Phase::Capturing { wanted } => {
                if wanted.contains(page) && !self.swept.ledger.has(page) {
                    self.copy(PageRun { start: page, count: PageCount::new(1) })?;
                }
            }
        }
        Ok(uffd.release(address, PAGE_BYTES)?)
    }

    /// Captures what of `run` no fault has captured.
    fn capture_run(&mut self, run: PageRun) -> Result<(), CaptureError> {
        let (mut at, end) = (run.start.get(), run.end().get());
        while at < end {
            let known = |page: u64| self.swept.ledger.has(PageIndex::new(page));
            let first = (at..end).find(|page| !known(*page)).unwrap_or(end);
            let last = (first..end).find(|page| known(*page)).unwrap_or(end);
            if first < last {
                self.copy(PageRun::new(first, last - first))?;
            }
            at = last;
        }
        Ok(())
    }

    fn copy(&mut self, run: PageRun) -> Result<(), CaptureError> {
        let address = self.source.address + run.start.byte_offset();
        let buffer = &mut self.buffer[..run.bytes().as_usize()];
        let read = self.source.memory.read(address, buffer);
        read.map_err(|source| CaptureError::Read { address, source })?;
        self.swept.ledger.take(run.start, buffer).map_err(CaptureError::Sink)
    }

    /// A guest must not wait for a capture that has been given up. Should this fail because the VMM
    /// is gone, nobody waits; should it fail otherwise, the owner closes the userfaultfd, which
    /// lifts all protection as well.
    fn release_everything(&self) {
        if let Some(uffd) = &self.source.uffd
            && let Err(error) = uffd.release(self.source.address, self.source.length)
        {
            tracing::debug!(%error, "protection of an abandoned capture was not lifted");
        }
    }
}
