//! Pausing a sandbox, letting it run again, and putting it back to what a snapshot holds.
//!
//! A paused guest's clocks stand still; its memory, disk and connections stay. It takes no requests
//! and no branches until it runs again. Its wall clock is set then, if its agent can.
//!
//! A rollback replaces the VM by a child of the snapshot, which confirms an identity of its own
//! like any other; the sandbox keeps its id, metadata and time to live. What it did since is gone,
//! also when the child does not start: the sandbox is dead then, with the reason.

use std::time::Duration;

use forkd_store::SnapshotRow;
use forkd_types::{PhaseClock, SandboxState};
use forkd_vmm::RunState;

use super::task::SandboxTask;
use crate::background::blocking;
use crate::sandboxes::SandboxHandle;
use crate::{EngineError, describe};

/// Time that a guest has for setting its clock.
const CLOCK_DEADLINE: Duration = Duration::from_secs(2);

/// A guest that does not answer runs all the same, with the time of its pause.
async fn set_clock(handle: &SandboxHandle) {
    let Ok(agent) = handle.agent() else { return };
    if let Err(error) = agent.set_clock(CLOCK_DEADLINE).await {
        tracing::info!(sandbox = %handle.id(), %error, "its clock is behind");
    }
}

impl SandboxTask {
    /// Stops the vCPUs. Does nothing where they stand still already.
    pub(super) async fn pause(&mut self) -> Result<(), EngineError> {
        match self.handle.sandbox().state {
            SandboxState::Paused => Ok(()),
            SandboxState::Running => self.bring_into(RunState::Paused).await,
            _ => Err(self.handle.not_running()),
        }
    }

    /// Lets the vCPUs run. Does nothing where they run already.
    pub(super) async fn resume(&mut self) -> Result<(), EngineError> {
        match self.handle.sandbox().state {
            SandboxState::Running => Ok(()),
            SandboxState::Paused => {
                self.bring_into(RunState::Running).await?;
                set_clock(&self.handle).await;
                Ok(())
            }
            _ => Err(self.handle.not_running()),
        }
    }

    async fn bring_into(&mut self, wanted: RunState) -> Result<(), EngineError> {
        if let Some(error) = self.resync().await {
            return Err(error);
        }
        let Some(mut machine) = self.machine.take() else { return Err(self.handle.not_running()) };
        let (machine, done) = blocking(move || {
            let done = match wanted {
                RunState::Paused => machine.vm.pause(),
                RunState::Running => machine.vm.resume(),
            };
            (machine, done)
        })
        .await?;
        let machine = self.machine.insert(machine);
        done?;
        let state = match wanted {
            RunState::Paused => SandboxState::Paused,
            RunState::Running => SandboxState::Running,
        };
        self.handle.enter(state, |_| {});
        self.lifecycle.sandboxes.record(&self.handle, machine)
    }

    /// Replaces the VM by a child of the snapshot in `row`.
    pub(super) async fn roll_back(&mut self, row: SnapshotRow) -> Result<(), EngineError> {
        let state = self.handle.sandbox().state;
        let may = matches!(state, SandboxState::Running | SandboxState::Paused);
        let Some(machine) = self.machine.as_ref().filter(|_| may) else {
            return Err(self.handle.not_running());
        };
        let rolling_back = SandboxState::RollingBack;
        // Until it is over, a later daemon can trust neither VM.
        self.lifecycle.sandboxes.record_as(&self.handle, machine, rolling_back)?;
        let Some(machine) = self.machine.take() else { return Err(self.handle.not_running()) };
        let id = self.handle.id();
        self.handle.disconnect();
        self.handle.enter(rolling_back, |_| {});
        self.exit = None;
        blocking(move || machine.vm.kill()).await?;
        self.lifecycle.snapshots.files.remove_vm_directory(id);
        self.lifecycle.sandboxes.remove_run_directory(id);
        let replaced = self.replace(&row).await;
        if let Err(error) = &replaced {
            let reason = describe(error);
            tracing::warn!(%reason, "a rollback has failed");
            self.died(&format!("it could not be rolled back: {reason}"), false);
        }
        // What it has needed until now, and needs no more.
        let files = self.machine.as_ref().map(|machine| machine.files()).unwrap_or_default();
        self.lifecycle.snapshots.files.claim(self.handle.id(), files);
        replaced
    }

    /// Whatever fails, the VM that was brought up is gone.
    async fn replace(&mut self, row: &SnapshotRow) -> Result<(), EngineError> {
        // The VMM has the id of its sandbox, so none that stands by will do.
        let shape = self.lifecycle.shape_of(row, &self.handle.sandbox().options).await?;
        let clock = &mut PhaseClock::start();
        let machine = self.lifecycle.bring_up(row, &self.handle, shape, None, clock).await?;
        let exit = machine.exit_watch()?;
        self.handle.update(|sandbox| sandbox.snapshot_tag = row.tag.clone());
        let running = SandboxState::Running;
        self.lifecycle.sandboxes.record_as(&self.handle, &machine, running)?;
        self.handle.touch();
        self.handle.enter(running, |_| {});
        self.exit = Some(exit);
        self.machine = Some(machine);
        Ok(())
    }
}
