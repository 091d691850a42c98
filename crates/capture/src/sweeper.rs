//! Inside the capture's thread.
//!
//! The order within one page is: copy, account, release. So a wanted page that the ledger does not
//! have is still protected, and what the sweep copies is what the page held at the branch point.
//! Swept pages stay protected; pages are released only for a guest that writes to them.
//!
//! The one lock is taken for a batch of faults; see [`SharedWatch`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use forkd_types::{PAGE_BYTES, PageIndex, PageRun, limit};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;

use crate::bitmap::PageBitmap;
use crate::command::{Command, Job, Protect, Swept};
use crate::ledger::CaptureStats;
use crate::pace::Pace;
use crate::run::{joined, pieces, runs_within};
use crate::source::Source;
use crate::watch::{FAULTS_RESERVED, SharedWatch, Watch};
use crate::{CaptureError, Copy};

/// Pages copied between two looks at the fault queue.
const CHUNK_PAGES: u64 = limit::SWEEP_CHUNK_BYTES as u64 / PAGE_BYTES;
/// Pages protected or released with one call at most, 16 MiB: the kernel holds page-table locks
/// meanwhile, and a kernel without preemption the processor.
const STRETCH_PAGES: u64 = 4096;

pub(crate) struct Sweeper {
    source: Source,
    watch: SharedWatch,
    abandoned: Arc<AtomicBool>,
    job: Option<Job>,
    /// Service times of the faults since the job began.
    faults: Vec<Duration>,
    addresses: Vec<u64>,
    buffer: Vec<u8>,
}

impl Sweeper {
    pub(crate) fn new(source: Source, watch: SharedWatch, abandoned: Arc<AtomicBool>) -> Self {
        Self {
            source,
            watch,
            abandoned,
            job: None,
            faults: Vec::with_capacity(FAULTS_RESERVED),
            addresses: Vec::with_capacity(1024),
            buffer: vec![0; limit::SWEEP_CHUNK_BYTES],
        }
    }

    /// Serves until it is given up or fails; then lifts all protection.
    pub(crate) fn run(
        mut self,
        wakeup: &OwnedFd,
        commands: &Receiver<Command>,
    ) -> Result<(), CaptureError> {
        let ended = self.serve(wakeup, commands);
        self.release_everything();
        ended
    }

    fn serve(
        &mut self,
        wakeup: &OwnedFd,
        commands: &Receiver<Command>,
    ) -> Result<(), CaptureError> {
        let mut pace = Pace::of_this_thread();
        loop {
            match commands.try_recv() {
                Ok(command) => self.execute(command, &mut pace)?,
                Err(TryRecvError::Disconnected) => return Err(CaptureError::Abandoned),
                Err(TryRecvError::Empty) => {
                    pace.rest_if_due();
                    if self.wait(wakeup)? == Waited::Yes {
                        pace.has_rested();
                    }
                }
            }
            self.serve_faults()?;
        }
    }

    /// Does what is asked for. After a failure the thread ends, and whoever asked is told why.
    fn execute(&mut self, command: Command, pace: &mut Pace) -> Result<(), CaptureError> {
        match command {
            Command::Begin { job, protect, answer } => {
                self.job = Some(*job);
                self.faults.clear();
                finish(&answer, self.protect(protect, pace))
            }
            Command::Sweep { answer } => finish(&answer, self.sweep(pace)),
        }
    }

    fn protect(&mut self, what: Protect, pace: &mut Pace) -> Result<(), CaptureError> {
        let runs = match what {
            Protect::Nothing => return Ok(()),
            Protect::Everything => {
                let mut watch = self.watch.lock();
                watch.tracks = true;
                drop(watch.take_open());
                vec![self.source.all()]
            }
            Protect::Opened => {
                let mut watch = self.watch.lock();
                let opened = watch.take_open();
                let runs = joined(&opened.runs());
                watch.dirty = opened;
                runs
            }
        };
        for stretch in runs.into_iter().flat_map(|run| pieces(run, STRETCH_PAGES)) {
            self.stop_if_abandoned()?;
            self.serve_faults()?;
            self.source.protect(stretch)?;
            pace.rest_if_due();
        }
        Ok(())
    }

    /// Captures what is wanted, and ends the job.
    fn sweep(&mut self, pace: &mut Pace) -> Result<Swept, CaptureError> {
        let (wanted, also) = {
            let watch = self.watch.lock();
            (watch.wanted.clone().ok_or(CaptureError::Abandoned)?, watch.also.clone())
        };
        let mut stats = CaptureStats::default();
        self.sweep_set(&wanted, pace)?;
        if let Some(job) = &mut self.job {
            stats.in_dirty_set = job.ledger.captured_count();
            stats.dirty_stored = job.ledger.changed_stored_count();
            job.ledger.ignore_unchanged();
        }
        if let Some(also) = also {
            let begun = Instant::now();
            self.sweep_set(&also, pace)?;
            stats.beyond_dirty = begun.elapsed();
        }
        let tracks = {
            let mut watch = self.watch.lock();
            (watch.wanted, watch.also) = (None, None);
            watch.tracks
        };
        if !tracks {
            self.release_runs(&wanted)?;
        }
        let job = self.job.take().ok_or(CaptureError::Abandoned)?;
        summarize(&mut self.faults, &mut stats);
        stats.captured = job.ledger.captured_count();
        stats.unchanged = job.ledger.unchanged_count();
        stats.stored = job.ledger.stored_count();
        Ok(Swept { pages: job.ledger.into_pages(), stats })
    }

    fn sweep_set(&mut self, set: &PageBitmap, pace: &mut Pace) -> Result<(), CaptureError> {
        let guest_runs = self.job.as_ref().is_some_and(|job| job.copy == Copy::AfterResume);
        for piece in set.runs().into_iter().flat_map(|run| pieces(run, CHUNK_PAGES)) {
            self.stop_if_abandoned()?;
            self.serve_faults()?;
            self.capture(piece)?;
            if guest_runs {
                pace.rest_if_due();
            }
        }
        Ok(())
    }

    /// Lifts the protection of all pages of `set`: where the next capture will find what is dirty
    /// by itself, faults would be for nothing.
    fn release_runs(&self, set: &PageBitmap) -> Result<(), CaptureError> {
        for stretch in joined(&set.runs()).into_iter().flat_map(|run| pieces(run, STRETCH_PAGES)) {
            self.source.release(stretch)?;
        }
        Ok(())
    }

    /// Sleeps until there is a fault or somebody wakes the thread.
    fn wait(&self, wakeup: &OwnedFd) -> Result<Waited, CaptureError> {
        let mut fds = vec![PollFd::new(wakeup, PollFlags::IN)];
        if let Some(uffd) = &self.source.uffd {
            fds.push(PollFd::new(uffd.as_ref(), PollFlags::IN));
        }
        let begun = Instant::now();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(CaptureError::Thread(errno.into())),
        }
        if fds.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL)) {
            return Err(CaptureError::Thread(rustix::io::Errno::SRCH.into()));
        }
        if fds[0].revents().intersects(PollFlags::IN) {
            // Only resets the counter: what the thread is woken for is in the queue of commands.
            rustix::io::read(wakeup, &mut [0; 8]).ok();
        }
        Ok(if begun.elapsed() > limit::SWEEP_REST { Waited::Yes } else { Waited::No })
    }

    fn serve_faults(&mut self) -> Result<(), CaptureError> {
        let Some(uffd) = self.source.uffd.clone() else { return Ok(()) };
        let mut addresses = std::mem::take(&mut self.addresses);
        addresses.clear();
        uffd.read_write_faults(&mut addresses)?;
        if !addresses.is_empty() {
            let read_at = Instant::now();
            let watch = self.watch.clone();
            let mut watch = watch.lock();
            for address in &addresses {
                self.serve_fault(&mut watch, *address)?;
                if self.faults.len() < FAULTS_NOTED_MAX {
                    self.faults.push(read_at.elapsed());
                }
            }
        }
        self.addresses = addresses;
        Ok(())
    }

    fn serve_fault(&mut self, watch: &mut Watch, address: u64) -> Result<(), CaptureError> {
        let page = PageIndex::containing(address.wrapping_sub(self.source.address));
        let run = watch.note_write(page);
        if let Some(wanted) = &watch.wanted {
            self.tell_probe(page)?;
            for piece in runs_within(run, |page| wanted.contains(page)) {
                self.capture(piece)?;
            }
        }
        Ok(self.source.release(run)?)
    }

    fn tell_probe(&self, page: PageIndex) -> Result<(), CaptureError> {
        let Some(job) = &self.job else { return Err(CaptureError::Abandoned) };
        let release = |page: PageIndex| Ok(self.source.release(PageRun::new(page.get(), 1))?);
        job.probe.before_copy(page, &release)
    }

    /// Captures what of `run` has not been captured.
    fn capture(&mut self, run: PageRun) -> Result<(), CaptureError> {
        let Some(job) = &mut self.job else { return Err(CaptureError::Abandoned) };
        let mut rest = run;
        while let Some(piece) = job.ledger.first_missing(rest) {
            let address = self.source.address_of(piece.start);
            let buffer = &mut self.buffer[..piece.bytes().as_usize()];
            let read = self.source.memory.read(address, buffer);
            read.map_err(|source| CaptureError::Read { address, source })?;
            job.ledger.take(piece.start, buffer).map_err(CaptureError::Sink)?;
            rest = PageRun::new(piece.end().get(), run.end().get() - piece.end().get());
        }
        Ok(())
    }

    fn stop_if_abandoned(&self) -> Result<(), CaptureError> {
        if self.abandoned.load(Ordering::Relaxed) { Err(CaptureError::Abandoned) } else { Ok(()) }
    }

    /// A guest must not wait for a capture that has been given up. Should this fail because the VMM
    /// is gone, nobody waits; should it fail otherwise, the owner closes the userfaultfd, which
    /// lifts all protection as well.
    fn release_everything(&self) {
        if let Err(error) = self.source.release(self.source.all()) {
            tracing::debug!(%error, "protection of an abandoned capture was not lifted");
        }
    }
}

/// Fault times kept for one capture; a source that is not branched again faults on.
const FAULTS_NOTED_MAX: usize = 1 << 20;

#[derive(PartialEq, Eq)]
enum Waited {
    Yes,
    No,
}

/// Tells whoever asked. An error also ends the thread, whose protection must not outlive it.
fn finish<T>(
    answer: &std::sync::mpsc::Sender<Result<T, CaptureError>>,
    result: Result<T, CaptureError>,
) -> Result<(), CaptureError> {
    let ended = if result.is_err() { Err(CaptureError::Abandoned) } else { Ok(()) };
    // Whoever asked may have given up waiting.
    answer.send(result).ok();
    ended
}

fn summarize(faults: &mut [Duration], stats: &mut CaptureStats) {
    faults.sort_unstable();
    stats.faults = faults.len() as u64;
    stats.fault_service_median = faults.get(faults.len() / 2).copied();
    stats.fault_service_max = faults.last().copied();
    faults.iter().for_each(|time| stats.fault_service.record(*time));
}
