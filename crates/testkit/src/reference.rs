//! A copy of guest RAM, taken while the VMM stands still at the branch point, and the comparison of
//! a snapshot with it.
//!
//! The copy knows nothing of how the capture finds, protects and copies pages: it asks the kernel
//! which pages the VMM's page tables have, and reads all of them, dirty or not. A page that they do
//! not have is one that the guest has not touched since it was forked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_capture::CapturePlan;
use forkd_engine::{BranchProbe, EngineError, GuestRam, ProbedBranch};
use forkd_store::{Layer, Registry, StoreFiles, resolve};
use forkd_sys::remote::RemoteMemory;
use forkd_types::{BranchPhase, PAGE_BYTES, SnapshotTag};
use forkd_vmm::{PausePlan, Vm};

use crate::mutation::Mutant;
use crate::{Lab, Mutation, WitnessPages};

/// Between arming the capture and the pause, so that the guest has written pages that the capture
/// must catch up with even where it had no turn on the host's processors.
const WRITING_TIME: Duration = Duration::from_millis(30);

/// In a word of `/proc/PID/pagemap`: the page is present.
const WORD_PRESENT: u64 = 1 << 63;
const WORD: usize = size_of::<u64>();
const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);

/// A probe that copies guest RAM in every branch's pause, and mutates branches when asked to.
#[derive(Debug, Default)]
pub struct ReferenceProbe {
    mutation: Mutex<Option<(Mutation, WitnessPages)>>,
    /// The branch under way, if it is mutated.
    mutant: Mutex<Option<Arc<Mutant>>>,
    copy: Mutex<Copy>,
}

/// The present pages of guest RAM at the last branch point.
#[derive(Default)]
struct Copy {
    tag: Option<SnapshotTag>,
    /// Ascending.
    pages: Vec<u64>,
    /// In the order of `pages`.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copy").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// How a snapshot's memory compares with the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Pages compared.
    pub compared: usize,
    /// Numbers of the pages that differ, ascending.
    pub differing: Vec<u64>,
}

impl ReferenceProbe {
    /// The next branch is mutated, and must be of the sandbox whose witness has these pages.
    pub fn mutate_next(&self, mutation: Mutation, witness: WitnessPages) {
        *lock(&self.mutation) = Some((mutation, witness));
    }

    /// Compares the memory of snapshot `tag`, as a child would map it, with the copy. The snapshot
    /// must be the last one that was branched.
    #[must_use]
    pub fn compare(&self, lab: &Lab, tag: &SnapshotTag) -> Comparison {
        let copy = lock(&self.copy);
        assert_eq!(copy.tag.as_ref(), Some(tag), "the copy is of another branch");
        let files = StoreFiles::open(&lab.config().state_dir, &lab.config().hot_dir);
        let files = files.expect("the store's directories are there");
        let registry = Registry::open(&files.registry()).expect("the registry opens");
        let rows = registry.snapshots().expect("the registry can be read");
        let row = rows.into_iter().find(|row| row.tag == *tag).expect("the snapshot has a row");
        let open = |id| Layer::open_hot(&files, id).expect("the layer is there");
        let layers: Vec<Layer> = row.manifest.layers.iter().map(open).collect();
        let indexes: Vec<_> = layers.iter().map(|layer| &layer.index).collect();
        let mut runs = resolve(&indexes).expect("the chain fits together").into_iter().peekable();
        let (mut content, mut differing) = ([0; PAGE], Vec::new());
        for (page, expected) in copy.pages.iter().zip(copy.bytes.chunks_exact(PAGE)) {
            while runs.next_if(|resolved| resolved.run.end().get() <= *page).is_some() {}
            let resolved = runs.peek().expect("a chain covers all of guest RAM");
            let pages = &layers[resolved.layer].pages;
            pages.read_exact_at(&mut content, page * PAGE_BYTES).expect("the layer can be read");
            if content != expected {
                differing.push(*page);
            }
        }
        Comparison { compared: copy.pages.len(), differing }
    }
}

impl BranchProbe for ReferenceProbe {
    fn change_plans(
        &self,
        branch: &ProbedBranch<'_>,
        capture: &mut CapturePlan,
        pause: &mut PausePlan,
    ) {
        let asked_for = lock(&self.mutation).take();
        let mutant = asked_for
            .map(|(mutation, witness)| Arc::new(Mutant::new(mutation, witness, branch.ram)));
        mutant.iter().for_each(|mutant| mutant.change_plans(capture, pause));
        *lock(&self.mutant) = mutant;
    }

    fn before(&self, phase: BranchPhase, branch: &ProbedBranch<'_>) -> Result<(), EngineError> {
        let mutant = lock(&self.mutant).clone();
        match (phase, mutant) {
            (BranchPhase::Pause, None) => std::thread::sleep(WRITING_TIME),
            (BranchPhase::Pause, Some(mutant)) => mutant.before_pause()?,
            (BranchPhase::Resume, _) => {
                let mut copy = lock(&self.copy);
                copy.tag = Some(branch.tag.clone());
                let taken = copy.take(branch.ram);
                taken.map_err(|error| EngineError::Internal(error.to_string()))?;
            }
            (BranchPhase::Sweep, Some(mutant)) => mutant.before_sweep()?,
            _ => {}
        }
        Ok(())
    }

    fn after_resume(&self, _: &ProbedBranch<'_>, vm: &mut dyn Vm) -> Result<(), EngineError> {
        let mutant = lock(&self.mutant).clone();
        mutant.map_or(Ok(()), |mutant| mutant.after_resume(vm))
    }
}

impl Copy {
    fn take(&mut self, ram: GuestRam) -> io::Result<()> {
        let pagemap = File::open(format!("/proc/{}/pagemap", ram.pid.as_raw_nonzero()))?;
        let mut words = vec![0; ram.length.as_usize() / PAGE * WORD];
        pagemap.read_exact_at(&mut words, ram.address / PAGE_BYTES * WORD as u64)?;
        let is_present = |bytes: &[u8]| {
            let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            word & WORD_PRESENT != 0
        };
        let present = words.chunks_exact(WORD).zip(0..).filter(|(bytes, _)| is_present(bytes));
        self.pages.clear();
        self.pages.extend(present.map(|(_, page)| page));
        self.bytes.resize(self.pages.len() * PAGE, 0);
        let memory = RemoteMemory::of(ram.pid);
        let mut rest = self.bytes.as_mut_slice();
        for run in self.pages.chunk_by(|page, next| page + 1 == *next) {
            let (now, later) = rest.split_at_mut(run.len() * PAGE);
            memory.read(ram.address + run[0] * PAGE_BYTES, now)?;
            rest = later;
        }
        Ok(())
    }
}

/// A test that panicked has left nothing half done that another test would read.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
