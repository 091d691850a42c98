//! The facade for pausing sandboxes, rolling them back, and how long they live.

use std::time::Duration;

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

    /// Lets a sandbox live for `left` from now on, whatever its time to live was; for ever without.
    /// What an idle timeout says holds all the same.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], and when it cannot be written down: then it holds only for
    /// this daemon.
    pub fn set_time_left(
        &self,
        id: &SandboxId,
        left: Option<Duration>,
    ) -> Result<Sandbox, EngineError> {
        let handle = self.visible(id)?;
        handle.live_for(left);
        self.all_sandboxes.record_options(&handle)?;
        Ok(handle.sandbox())
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
