//! Mutations: defects that are built into a branch on purpose, to see that the proof of one instant
//! catches them.
//!
//! Each strikes pages or records of the witness and no others, by choice, and waits until the guest
//! has written what makes the damage visible. So every branch with a mutation is torn, and its
//! child lives to tell.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_capture::{CaptureError, CapturePlan, CaptureProbe, NothingBelow, PagesBelow, Release};
use forkd_engine::{EngineError, GuestRam};
use forkd_sys::remote::RemoteMemory;
use forkd_types::{PageIndex, PageRun};
use forkd_vmm::{DiskOverlay, PausePlan, Vm};

use crate::WitnessPages;

/// A way to tear a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Pages written between arming and the pause stay writable.
    UnprotectedPages,
    /// Pages that fault are released before they are copied.
    EarlyRelease,
    /// One dirty page is taken for unchanged.
    SkippedPage,
    /// The disk is cut only after the guest has resumed.
    LateDisk,
}

/// Writes of each writer in which it writes each of its hot pages twice.
const WRITES: u64 = 128;
/// Pages released early in one branch: more than the vCPUs can be about to write when the guest is
/// stopped, which their children write again just so.
const RELEASES: u32 = 4;
/// Records written before the disk is cut: more than the one under way when the guest is stopped.
const RECORDS: u64 = 4;
/// Longest wait for the witness.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for the write that a page was released for.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const INTERVAL: Duration = Duration::from_micros(100);

/// One branch with a mutation.
#[derive(Debug)]
pub(crate) struct Mutant {
    mutation: Mutation,
    witness: WitnessPages,
    ram: GuestRam,
    released: AtomicU32,
    /// Kept back from the pause.
    overlay: Mutex<Option<DiskOverlay>>,
}

impl Mutant {
    pub(crate) fn new(mutation: Mutation, witness: WitnessPages, ram: GuestRam) -> Self {
        let (released, overlay) = (AtomicU32::new(0), Mutex::default());
        Self { mutation, witness, ram, released, overlay }
    }

    pub(crate) fn change_plans(self: &Arc<Self>, capture: &mut CapturePlan, pause: &mut PausePlan) {
        match self.mutation {
            Mutation::UnprotectedPages | Mutation::EarlyRelease => {
                capture.probe = Arc::clone(self) as _;
            }
            Mutation::SkippedPage => {
                let below = std::mem::replace(&mut capture.below, Box::new(NothingBelow));
                capture.below = Box::new(Skipping { below, page: self.witness.hot[0] });
            }
            Mutation::LateDisk => *self.overlay() = pause.overlay.take(),
        }
    }

    /// The capture is armed: every page that is written now has to be protected again.
    pub(crate) fn before_pause(&self) -> Result<(), EngineError> {
        self.wait_for_writes()
    }

    /// The guest runs, and nothing has been swept.
    pub(crate) fn before_sweep(&self) -> Result<(), EngineError> {
        match self.mutation {
            Mutation::UnprotectedPages => self.wait_for_writes(),
            Mutation::EarlyRelease => {
                wait_for(|| Ok(self.released.load(Ordering::Relaxed) >= RELEASES))
            }
            Mutation::SkippedPage | Mutation::LateDisk => Ok(()),
        }
    }

    pub(crate) fn after_resume(&self, vm: &mut dyn Vm) -> Result<(), EngineError> {
        let Some(overlay) = self.overlay().take() else { return Ok(()) };
        let records = self.count(self.witness.records)? + RECORDS;
        wait_for(|| Ok(self.count(self.witness.records)? >= records))?;
        let spec = vm.spec();
        let own = spec.confinement.jail.as_ref().map(|jail| &jail.device_state);
        let device_state = own.unwrap_or(&spec.directory).join("late");
        let plan = PausePlan { device_state, overlay: Some(overlay) };
        vm.prepare_pause(plan)?.stop()?.save_device_state()?.freeze_disk()?.resume()?;
        Ok(())
    }

    /// Waits until each writer has written all its hot pages anew.
    fn wait_for_writes(&self) -> Result<(), EngineError> {
        for writer in &self.witness.writes {
            let writes = self.count(*writer)? + WRITES;
            wait_for(|| Ok(self.count(*writer)? >= writes))?;
        }
        Ok(())
    }

    /// The count that `page` begins with.
    fn count(&self, page: PageIndex) -> Result<u64, EngineError> {
        let mut word = [0; 8];
        let read = self.read(page, &mut word);
        read.map_err(|error| EngineError::Internal(format!("read a count: {error}")))?;
        Ok(u64::from_le_bytes(word))
    }

    fn read(&self, page: PageIndex, into: &mut [u8]) -> io::Result<()> {
        RemoteMemory::of(self.ram.pid).read(self.ram.address + page.byte_offset(), into)
    }

    fn overlay(&self) -> std::sync::MutexGuard<'_, Option<DiskOverlay>> {
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CaptureProbe for Mutant {
    fn before_protect(&self, writable: &mut Vec<PageRun>) {
        if self.mutation == Mutation::UnprotectedPages {
            let pages = writable.iter().flat_map(|run| run.start.get()..run.end().get());
            let others = pages.filter(|page| !self.witness.hot.contains(&PageIndex::new(*page)));
            *writable = others.map(|page| PageRun::new(page, 1)).collect();
        }
    }

    fn before_copy(&self, page: PageIndex, release: &Release<'_>) -> Result<(), CaptureError> {
        let strikes = self.mutation == Mutation::EarlyRelease
            && self.released.load(Ordering::Relaxed) < RELEASES
            && self.witness.hot.contains(&page);
        if !strikes {
            return Ok(());
        }
        let content = || {
            let mut bytes = [0; 4096];
            let address = self.ram.address + page.byte_offset();
            let read = self.read(page, &mut bytes);
            read.map(|()| bytes).map_err(|source| CaptureError::Read { address, source })
        };
        let at_branch_point = content()?;
        release(page)?;
        let begun = Instant::now();
        while begun.elapsed() < WRITE_PATIENCE {
            if content()? != at_branch_point {
                self.released.fetch_add(1, Ordering::Relaxed);
                break;
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    }
}

/// What is below, but that `page` is said to be unchanged.
struct Skipping {
    below: Box<dyn PagesBelow>,
    page: PageIndex,
}

impl PagesBelow for Skipping {
    fn compare(&mut self, start: PageIndex, data: &[u8], same: &mut Vec<bool>) -> io::Result<()> {
        self.below.compare(start, data, same)?;
        let skipped = self.page.get().checked_sub(start.get());
        let skipped = skipped.and_then(|number| same.get_mut(usize::try_from(number).ok()?));
        skipped.into_iter().for_each(|same| *same = true);
        Ok(())
    }
}

/// Waits until `holds`.
fn wait_for(holds: impl Fn() -> Result<bool, EngineError>) -> Result<(), EngineError> {
    let begun = Instant::now();
    while !holds()? {
        if begun.elapsed() > PATIENCE {
            let text = format!("the witness wrote too little in {PATIENCE:?}");
            return Err(EngineError::Internal(text));
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
