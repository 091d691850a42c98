//! Pausing a sandbox, letting it run again, and putting it back to what a snapshot holds.
//!
//! A paused guest's clocks stand still; its memory, disk and connections stay. It takes no requests
//! and no branches until it runs again.
//!
//! A rollback replaces the VM by a child of the snapshot, which confirms an identity of its own
//! like any other; the sandbox keeps its id, metadata and time to live. What it did since is gone,
//! also when the child does not start: the sandbox is dead then, with the reason.

use forkd_store::SnapshotRow;
use forkd_types::SandboxState;

use super::blocking;
use super::start::bring_up;
use super::task::SandboxTask;
use crate::{EngineError, branch};

impl SandboxTask {
    /// Stops the vCPUs. Does nothing where they stand still already.
    pub(super) async fn pause(&mut self) -> Result<(), EngineError> {
        match self.handle.sandbox().state {
            SandboxState::Paused => Ok(()),
            SandboxState::Running => self.hold(SandboxState::Paused).await,
            _ => Err(self.handle.not_running()),
        }
    }

    /// Lets the vCPUs run. Does nothing where they run already.
    pub(super) async fn resume(&mut self) -> Result<(), EngineError> {
        match self.handle.sandbox().state {
            SandboxState::Running => Ok(()),
            SandboxState::Paused => self.hold(SandboxState::Running).await,
            _ => Err(self.handle.not_running()),
        }
    }

    async fn hold(&mut self, state: SandboxState) -> Result<(), EngineError> {
        if let Some(error) = self.settle().await {
            return Err(error);
        }
        let Some(mut machine) = self.machine.take() else { return Err(self.handle.not_running()) };
        let (machine, done) = blocking(move || {
            let done = match state {
                SandboxState::Paused => machine.vm.pause(),
                _ => machine.vm.resume(),
            };
            (machine, done)
        })
        .await?;
        let machine = self.machine.insert(machine);
        done?;
        self.handle.update(|sandbox| sandbox.state = state);
        self.inner.record(&self.handle, machine)
    }

    /// Replaces the VM by a child of the snapshot in `row`.
    pub(super) async fn roll_back(&mut self, row: SnapshotRow) -> Result<(), EngineError> {
        let state = self.handle.sandbox().state;
        let may = matches!(state, SandboxState::Running | SandboxState::Paused);
        let Some(machine) = self.machine.take_if(|_| may) else {
            return Err(self.handle.not_running());
        };
        let before = self.handle.files();
        self.handle.forget_agent();
        self.handle.update(|sandbox| sandbox.state = SandboxState::RollingBack);
        self.exit = None;
        blocking(move || machine.vm.kill()).await?;
        self.inner.files.remove_vm_directory(self.handle.id());
        self.inner.remove_run_directory(self.handle.id());
        let replaced = self.replace(&row).await;
        if let Err(error) = &replaced {
            let reason = branch::describe(error);
            tracing::warn!(%reason, "a rollback has failed");
            self.handle.forget_agent();
            self.handle.update(|sandbox| {
                sandbox.state = SandboxState::Dead;
                sandbox.pid = None;
                sandbox.error = Some(format!("it could not be rolled back: {reason}"));
            });
        }
        self.inner.collect(&before);
        replaced
    }

    async fn replace(&mut self, row: &SnapshotRow) -> Result<(), EngineError> {
        let machine = bring_up(&self.inner, row, &self.handle).await?;
        self.exit = Some(machine.exit_watch()?);
        self.handle.touch();
        self.handle.update(|sandbox| {
            sandbox.state = SandboxState::Running;
            sandbox.snapshot_tag = row.tag.clone();
        });
        let machine = self.machine.insert(machine);
        self.inner.record(&self.handle, machine)
    }
}
