//! From a machine to a sandbox that is handed out.
//!
//! A child is handed out only after its guest agent confirmed that it has entropy, clock, names and
//! ids of its own; otherwise two machines would be the same one. Whatever fails before it is handed
//! out, the VM and everything that was made for it are removed.

use std::sync::Arc;
use std::time::SystemTime;

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::network::GUEST_IPV4;
use forkd_types::{PhaseClock, PhaseTimes, SandboxState, SnapshotTag, StartPhase};
use tracing::Instrument as _;

use super::Lifecycle;
use super::task::SandboxTask;
use crate::sandboxes::{Origin, Place, SandboxHandle, Sandboxes, Shape, Sibling, StandbyVmm};
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
            self.handle.disconnect();
            self.sandboxes.discard(&self.handle);
        }
    }
}

/// What a start is made of.
struct Ingredients {
    row: SnapshotRow,
    shape: Shape,
    standby: Option<StandbyVmm>,
}

impl Lifecycle {
    /// Starts one child of the snapshot `tag`.
    pub(crate) async fn start_child(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        place: Place,
        options: SandboxOptions,
        sibling: Sibling,
    ) -> Result<Sandbox, EngineError> {
        let started = self.start(tag, place, options, sibling).await;
        started.inspect_err(|error| self.snapshots.note_damage(tag, error))
    }

    async fn start(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        place: Place,
        options: SandboxOptions,
        sibling: Sibling,
    ) -> Result<Sandbox, EngineError> {
        let clock = PhaseClock::start();
        let row = self.snapshots.catalog.ready(tag)?;
        self.host.require_compatible(&row)?;
        let shape = self.shape_of(&row, &options).await?;
        let standby = self.standby.claim(&shape, &Origin::from(&row), sibling);
        let (id, _reserved) = match &standby {
            // It keeps its id until then.
            Some(standby) => (standby.id.clone(), None),
            None => {
                let reserved = self.sandboxes.reserve_id();
                (reserved.id().clone(), Some(reserved))
            }
        };
        let span = tracing::info_span!("start", sandbox = %id, snapshot = %tag);
        let sandbox = Sandbox {
            hostname: id.to_string(),
            id,
            snapshot_tag: tag.clone(),
            created_at: SystemTime::now(),
            pid: None,
            state: SandboxState::Starting,
            branch_count: 0,
            network_refusals: 0,
            started_in: None,
            start_phases: PhaseTimes::default(),
            error: None,
            memory_limit_reached: false,
            isolation: self.host.isolation,
            limits: shape.limits,
            guest_address: row.manifest.network_device.then_some(GUEST_IPV4),
            options,
            expires_at: None,
        };
        let ingredients = Ingredients { row, shape, standby };
        self.start_as(sandbox, ingredients, place, clock).instrument(span).await
    }

    async fn start_as(
        self: &Arc<Self>,
        sandbox: Sandbox,
        ingredients: Ingredients,
        place: Place,
        mut clock: PhaseClock<StartPhase>,
    ) -> Result<Sandbox, EngineError> {
        let Ingredients { row, shape, standby } = ingredients;
        let events = Arc::clone(&self.sandboxes.events);
        let handle = Arc::new(SandboxHandle::new(sandbox, place, events));
        // Known from here on, so that nobody removes the snapshot under it.
        let starting = self.snapshots.catalog.while_ready(&row, || {
            self.snapshots.files.claim_also(handle.id(), FileSet::from(&row.manifest));
            Starting::begin(&self.sandboxes, Arc::clone(&handle))
        })?;
        let join = handle.sandbox().options.join;
        if !join.is_empty() {
            if !row.manifest.network_device {
                return Err(EngineError::NoNetworkDevice { id: handle.id().clone() });
            }
            self.settle_networks(&handle, &join)?;
        }
        let machine = self.bring_up(&row, &handle, shape, standby, &mut clock).await?;
        let exit = machine.exit_watch()?;
        // From here on it is taken over if this daemon dies.
        self.sandboxes.record_as(&handle, &machine, SandboxState::Running)?;
        handle.touch();
        clock.end(StartPhase::HandOut);
        let times = clock.times();
        let took = times.total();
        handle.enter(SandboxState::Running, |sandbox| {
            sandbox.started_in = Some(took);
            sandbox.start_phases = times.clone();
        });
        SandboxTask::spawn(self, Arc::clone(&handle), machine, exit);
        starting.commit();
        tracing::info!(?took, phases = %times, "started");
        Ok(handle.sandbox())
    }
}
