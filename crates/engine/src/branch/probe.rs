//! A view into a running branch, for tests.

use std::fmt::Debug;

use forkd_capture::CapturePlan;
use forkd_types::{BranchMode, BranchPhase, SandboxId, SnapshotTag};
use forkd_vmm::{GuestRam, PausePlan, Vm};

use crate::EngineError;

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

    /// What the branch is about to do. An implementation may change it, to make a branch that is
    /// not of one instant.
    fn change_plans(
        &self,
        branch: &ProbedBranch<'_>,
        capture: &mut CapturePlan,
        pause: &mut PausePlan,
    ) {
        let _ = (branch, capture, pause);
    }

    /// The source runs again; what became of its disk has not been looked at yet.
    ///
    /// # Errors
    /// An error fails the branch.
    fn after_resume(&self, branch: &ProbedBranch<'_>, vm: &mut dyn Vm) -> Result<(), EngineError> {
        let _ = (branch, vm);
        Ok(())
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

/// Who looks on, and at what.
pub(super) type Probe<'a> = (&'a dyn BranchProbe, ProbedBranch<'a>);
