//! The thread that serves write faults and sweeps.
//!
//! Order within one page: copy, account, release. So a page that the ledger does not have is still
//! protected, and what the sweep copies is what the page held at the branch point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forkd_sys::remote::RemoteMemory;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{PAGE_BYTES, PageCount, PageIndex, PageRun, limit};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::CaptureError;
use crate::ledger::{CaptureStats, Ledger};

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

/// Handle of the thread. Dropping it makes the thread give up, lift all protection, and end.
pub(crate) struct Worker {
    /// Carries the one order: sweep these runs. Closed without one: give up.
    orders: Option<Sender<Vec<PageRun>>>,
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
        let (orders, inbox) = channel();
        let (outbox, results) = channel();
        let sweeper = Sweeper {
            source,
            swept: Swept { ledger, faults: FaultTimes(Vec::with_capacity(4096)) },
            addresses: Vec::with_capacity(1024),
            buffer: vec![0; limit::SWEEP_CHUNK_BYTES],
            abandoned: Arc::clone(&abandoned),
        };
        let heard = Arc::clone(&bell);
        let thread = std::thread::Builder::new()
            .name("forkd-capture".to_owned())
            .spawn(move || {
                // Nobody receives when the handle has been dropped: then nobody needs the result.
                outbox.send(sweeper.run(&heard, &inbox)).ok();
            })
            .map_err(CaptureError::Thread)?;
        Ok(Self { orders: Some(orders), bell, abandoned, results, thread: Some(thread) })
    }

    /// Sweeps `runs` and ends the thread.
    pub(crate) fn sweep(
        mut self,
        runs: Vec<PageRun>,
        deadline: Duration,
    ) -> Result<Swept, CaptureError> {
        if let Some(orders) = self.orders.take() {
            // A thread that has ended already has left its error in `results`.
            orders.send(runs).ok();
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
}

impl Sweeper {
    fn run(
        mut self,
        bell: &OwnedFd,
        inbox: &Receiver<Vec<PageRun>>,
    ) -> Result<Swept, CaptureError> {
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
        inbox: &Receiver<Vec<PageRun>>,
    ) -> Result<(), CaptureError> {
        let runs = loop {
            match inbox.try_recv() {
                Ok(runs) => break runs,
                Err(TryRecvError::Disconnected) => return Err(CaptureError::Abandoned),
                Err(TryRecvError::Empty) => {}
            }
            self.wait(bell)?;
            self.serve_faults()?;
        };
        let chunk = limit::SWEEP_CHUNK_BYTES as u64 / PAGE_BYTES;
        for run in runs {
            let (mut at, end) = (run.start.get(), run.end().get());
            while at < end {
                if self.abandoned.load(Ordering::Relaxed) {
                    return Err(CaptureError::Abandoned);
                }
                self.serve_faults()?;
                let count = chunk.min(end - at);
                self.sweep_chunk(PageRun::new(at, count))?;
                at += count;
            }
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
        let read_at = Instant::now();
        for address in &addresses {
            let page = PageIndex::containing(address.wrapping_sub(self.source.address));
            if page.byte_offset() < self.source.length && !self.swept.ledger.has(page) {
                self.copy(PageRun { start: page, count: PageCount::new(1) })?;
            }
            uffd.release(*address, PAGE_BYTES)?;
            self.swept.faults.0.push(read_at.elapsed());
        }
        self.addresses = addresses;
        Ok(())
    }

    /// Captures what of `chunk` no fault has captured, then releases all of it.
    fn sweep_chunk(&mut self, chunk: PageRun) -> Result<(), CaptureError> {
        let (mut at, end) = (chunk.start.get(), chunk.end().get());
        while at < end {
            let known = |page: u64| self.swept.ledger.has(PageIndex::new(page));
            let first = (at..end).find(|page| !known(*page)).unwrap_or(end);
            let last = (first..end).find(|page| known(*page)).unwrap_or(end);
            if first < last {
                self.copy(PageRun::new(first, last - first))?;
            }
            at = last;
        }
        if let Some(uffd) = &self.source.uffd {
            let address = self.source.address + chunk.start.byte_offset();
            uffd.release(address, chunk.bytes().get())?;
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
