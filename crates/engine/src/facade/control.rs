//! The facade for pausing sandboxes and rolling them back.

use forkd_types::{SandboxId, SnapshotTag};
use tokio::sync::oneshot;

use crate::sandboxes::Request;
use crate::{Engine, EngineError, Sandbox};

impl Engine {
    /// Stops a sandbox's vCPUs until [`Self::resume_sandbox`].
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn pause_sandbox(&self, id: &SandboxId) -> Result<Sandbox, EngineError> {
        self.ask(id, Request::Pause).await
    }

    /// Lets a paused sandbox run again.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn resume_sandbox(&self, id: &SandboxId) -> Result<Sandbox, EngineError> {
        self.ask(id, Request::Resume).await
    }

    /// Puts a sandbox back to what the snapshot `tag` holds: its VM is replaced by a child of it.
    ///
    /// # Errors
    /// See [`EngineError`]. Nothing has been done where the snapshot does not fit; otherwise the
    /// sandbox is dead.
    pub async fn roll_back_sandbox(
        &self,
        id: &SandboxId,
        tag: &SnapshotTag,
    ) -> Result<Sandbox, EngineError> {
        let origin = self.visible(id)?.origin();
        let row = self.ready_row(tag)?;
        self.lifecycle.host.require_compatible(&row)?;
        if let Some(memory) = origin.map(|origin| origin.memory)
            && memory != row.manifest.memory
        {
            let problem = format!("`{tag}` has {} of memory, not {memory}", row.manifest.memory);
            return Err(EngineError::BadRequest { field: "snapshot_tag", problem });
        }
        self.ask(id, |done| Request::RollBack(Box::new(row), done)).await
    }

    async fn ask(
        &self,
        id: &SandboxId,
        request: impl FnOnce(oneshot::Sender<Result<(), EngineError>>) -> Request,
    ) -> Result<Sandbox, EngineError> {
        let handle = self.used(id)?;
        let (done, outcome) = oneshot::channel();
        handle.request(request(done))?;
        outcome.await.unwrap_or_else(|_| Err(handle.not_running()))?;
        Ok(handle.sandbox())
    }
}
