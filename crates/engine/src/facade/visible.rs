//! What of all there is exists for the caller. The rest of the facade asks here first.

use std::path::PathBuf;
use std::sync::Arc;

use forkd_store::SnapshotRow;
use forkd_types::{OperationId, SandboxId, SnapshotTag};

use crate::sandboxes::{InUse, SandboxHandle};
use crate::{Caller, Engine, EngineError, Operation, Snapshot};

impl Engine {
    /// The same engine as `caller` sees it.
    #[must_use]
    pub fn seen_by(&self, caller: Caller) -> Self {
        Self { caller, ..self.clone() }
    }

    /// Who asks.
    #[must_use]
    pub const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// A sandbox that is looked at.
    pub(super) fn visible(&self, id: &SandboxId) -> Result<Arc<SandboxHandle>, EngineError> {
        let unknown = || EngineError::UnknownSandbox { id: id.clone() };
        let handle = self.all_sandboxes.get(id)?;
        if self.caller.controls(&handle.owner()) { Ok(handle) } else { Err(unknown()) }
    }

    /// The run directory of a sandbox.
    pub(super) fn run_directory_of(&self, id: &SandboxId) -> Result<PathBuf, EngineError> {
        Ok(self.all_sandboxes.run_directory(self.visible(id)?.id()))
    }

    /// A sandbox that is used until what this gives is dropped.
    pub(super) fn used(&self, id: &SandboxId) -> Result<InUse, EngineError> {
        self.visible(id).map(InUse::of)
    }

    pub(super) fn all_visible(&self) -> Vec<Arc<SandboxHandle>> {
        let mut all = self.all_sandboxes.all();
        all.retain(|handle| self.caller.controls(&handle.owner()));
        all
    }

    /// A snapshot that is looked at or started from.
    pub(super) fn visible_snapshot(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        let unknown = || EngineError::UnknownSnapshot { tag: tag.clone() };
        let snapshot = self.snapshots.catalog.view(tag)?;
        if self.caller.sees_snapshot(&snapshot) { Ok(snapshot) } else { Err(unknown()) }
    }

    /// The row of a snapshot that the caller may start from.
    pub(super) fn ready_row(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        self.visible_snapshot(tag)?;
        self.snapshots.catalog.ready(tag)
    }

    /// Refuses to change a snapshot of somebody else. One that can be seen is known to exist.
    pub(super) fn check_own(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        self.visible_snapshot(tag)?;
        if self.caller.controls(tag.owner()) {
            return Ok(());
        }
        Err(EngineError::NotYours { tag: tag.clone() })
    }

    pub(super) fn visible_operation(&self, id: &OperationId) -> Result<Operation, EngineError> {
        let unknown = || EngineError::UnknownOperation { id: id.clone() };
        let operation = self.operations.get(id)?;
        if self.caller.sees_operation(&operation) { Ok(operation) } else { Err(unknown()) }
    }
}
