//! A view into a running branch, for tests.

use std::fmt::Debug;

use forkd_types::{BranchMode, BranchPhase, SandboxId, SnapshotTag};
use forkd_vmm::GuestRam;

use crate::{EngineError, Flaw};

/// Called at the edges of a branch's phases, on the thread that takes the branch. Production has
/// none. An implementation may do to the machine whatever could happen to it there: kill it, fill
/// its disk, copy its memory.
pub trait BranchProbe: Debug + Send + Sync {
    /// `phase` is about to begin.
    ///
    /// # Errors
    /// An error fails the branch as an error of the phase itself would.
    fn before(&self, phase: BranchPhase, branch: &ProbedBranch<'_>) -> Result<(), EngineError> {
        let _ = (phase, branch);
        Ok(())
    }

    /// The snapshot `tag` is about to be published: in the background, when nothing is asked of the
    /// source any more.
    ///
    /// # Errors
    /// An error leaves the snapshot ready, and not durable.
    fn before_publish(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        let _ = tag;
        Ok(())
    }

    /// A defect to build into this branch; has an effect only in programs that are compiled with
    /// the feature `flaws`.
    fn flaw(&self) -> Option<Flaw> {
        None
    }
}

/// Which branch a probe sees.
#[derive(Debug, Clone, Copy)]
pub struct ProbedBranch<'a> {
    /// The source.
    pub sandbox: &'a SandboxId,
    /// The snapshot that is being made.
    pub tag: &'a SnapshotTag,
    /// Its mode.
    pub mode: BranchMode,
    /// Where the source's memory is.
    pub ram: GuestRam,
}
