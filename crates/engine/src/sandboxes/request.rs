//! What a sandbox's task can be asked for.

use std::time::Instant;

use forkd_store::SnapshotRow;
use forkd_types::{BranchMode, SnapshotTag};
use tokio::sync::oneshot;

use super::{BranchPlace, RequestKind, UseGuard};
use crate::EngineError;
use crate::operation::Running;

/// A way to tell whoever asked how it went.
pub(crate) type Answer = oneshot::Sender<Result<(), EngineError>>;

/// A request that touches the VM.
pub(crate) enum Request {
    /// Take a branch.
    Branch(Box<BranchOrder>),
    /// End the VM and remove what belongs to it.
    Remove(oneshot::Sender<()>),
    /// Let go of the VM, which runs on.
    Release(oneshot::Sender<()>),
    /// Stop the vCPUs.
    Pause(Answer),
    /// Let them run again.
    Resume(Answer),
    /// Replace the VM by a child of this snapshot.
    RollBack(Box<SnapshotRow>, Answer),
}

impl Request {
    /// What the queue judges it by.
    pub(crate) const fn kind(&self) -> RequestKind {
        match self {
            Self::Branch(_) => RequestKind::Branch,
            Self::Remove(_) => RequestKind::Remove,
            Self::Release(_) => RequestKind::Release,
            Self::Pause(_) => RequestKind::Pause,
            Self::Resume(_) => RequestKind::Resume,
            Self::RollBack(..) => RequestKind::RollBack,
        }
    }
}

/// A branch that is asked for.
pub(crate) struct BranchOrder {
    pub(crate) tag: SnapshotTag,
    pub(crate) mode: BranchMode,
    pub(crate) requested_at: Instant,
    pub(crate) operation: Running,
    /// Held until it is over.
    pub(crate) place: BranchPlace,
    /// The source is in use until it is over.
    pub(crate) source: UseGuard,
    /// Told when the source runs again.
    pub(crate) resumed: oneshot::Sender<()>,
    /// Told how it ended.
    pub(crate) done: Answer,
}

impl BranchOrder {
    /// Answers without doing anything.
    pub(crate) fn refuse(self, error: EngineError) {
        let result = Err(error);
        self.operation.finish(&result);
        // Whoever asked may have gone away.
        self.done.send(result).ok();
    }
}
