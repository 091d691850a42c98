//! From a machine to a sandbox that is handed out.
//!
//! A child is handed out only after its guest agent confirmed that it has entropy, clock, names and
//! ids of its own; otherwise two machines would be the same one. Whatever fails before it is handed
//! out, the VM and everything that was made for it are removed.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use forkd_store::FileSet;
use forkd_types::{SandboxId, SandboxState, SnapshotTag};
use tracing::Instrument as _;

use super::Lifecycle;
use super::task::SandboxTask;
use crate::sandboxes::{Place, SandboxHandle, Sandboxes};
use crate::{EngineError, Sandbox, SandboxOptions};

/// A sandbox that is not handed out yet. Dropping it removes all that was made for it, so that no
/// way out of a start leaves a sandbox that nobody owns.
struct Starting<'a> {
    sandboxes: &'a Sandboxes,
    handle: Arc<SandboxHandle>,
    handed_out: bool,
}

impl<'a> Starting<'a> {
    fn begin(sandboxes: &'a Sandboxes, handle: Arc<SandboxHandle>) -> Self {
        sandboxes.add(Arc::clone(&handle));
        Self { sandboxes, handle, handed_out: false }
    }

    /// It has a task, which removes it when its time comes.
    fn commit(mut self) {
        self.handed_out = true;
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if !self.handed_out {
            self.handle.forget_agent();
            self.sandboxes.discard(&self.handle);
        }
    }
}

impl Lifecycle {
    /// Starts one child of the snapshot `tag`.
    pub(crate) async fn start_child(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        place: Place,
        options: SandboxOptions,
    ) -> Result<Sandbox, EngineError> {
        let id = self.sandboxes.new_id();
        let span = tracing::info_span!("start", sandbox = %id, snapshot = %tag);
        let started = self.start(tag, id, place, options).instrument(span).await;
        started.inspect_err(|error| self.snapshots.note_damage(tag, error))
    }

    async fn start(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        id: SandboxId,
        place: Place,
        options: SandboxOptions,
    ) -> Result<Sandbox, EngineError> {
        let begun = Instant::now();
        let row = self.snapshots.catalog.ready(tag)?;
        self.host.require_compatible(&row)?;
        let sandbox = Sandbox {
            id: id.clone(),
            snapshot_tag: tag.clone(),
            created_at: SystemTime::now(),
            pid: None,
            state: SandboxState::Starting,
            branch_count: 0,
            hostname: id.to_string(),
            started_in: None,
            error: None,
            memory_limit_reached: false,
            isolation: self.host.isolation,
            options,
            expires_at: None,
        };
        let events = Arc::clone(&self.sandboxes.events);
        let handle = Arc::new(SandboxHandle::new(sandbox, place, events));
        // Known from here on, so that nobody removes the snapshot under it.
        let starting = Starting::begin(&self.sandboxes, Arc::clone(&handle));
        self.snapshots.files.claim(&id, FileSet::from(&row.manifest));
        let machine = self.bring_up(&row, &handle).await?;
        let exit = machine.exit_watch()?;
        // From here on it is taken over if this daemon dies.
        self.sandboxes.record_as(&handle, &machine, SandboxState::Running)?;
        handle.touch();
        handle.enter(SandboxState::Running, |sandbox| sandbox.started_in = Some(begun.elapsed()));
        SandboxTask::spawn(self, Arc::clone(&handle), machine, exit);
        starting.commit();
        tracing::info!(took = ?begun.elapsed(), "started");
        Ok(handle.sandbox())
    }
}
