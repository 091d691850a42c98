//! What the engine knows of a sandbox without asking its task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forkd_store::{FileSet, SnapshotManifest, SnapshotRow};
use forkd_types::{LayerId, LifeCycle as _, OverlayId, SandboxId, SandboxState};
use forkd_vmm::VmmError;
use tokio::sync::{mpsc, oneshot};

use super::use_of::Lease;
use crate::admission::Place;
use crate::branch::BranchOrder;
use crate::events::{Change, EventLog, SandboxChange};
use crate::guest::{GuestAgent, GuestError, ProcessTable};
use crate::{EngineError, Sandbox};

/// What a sandbox's task is asked for. Orders are done in the order of their arrival.
pub(crate) enum Order {
    /// Take a branch.
    Branch(Box<BranchOrder>),
    /// End the VM and remove what belongs to it.
    Remove(oneshot::Sender<()>),
    /// Let go of the VM, which runs on.
    Release(oneshot::Sender<()>),
    /// Stop the vCPUs.
    Pause(oneshot::Sender<Result<(), EngineError>>),
    /// Let them run again.
    Resume(oneshot::Sender<Result<(), EngineError>>),
    /// Replace the VM by a child of this snapshot.
    RollBack(Box<SnapshotRow>, oneshot::Sender<Result<(), EngineError>>),
}

/// Orders that may wait for one sandbox; more are refused as `busy`.
const ORDERS_WAITING_MAX: usize = 64;

/// From the end of a VMM, which breaks off requests to its guest, until the sandbox's task knows.
const END_KNOWN_DEADLINE: Duration = Duration::from_millis(500);
const END_KNOWN_POLL: Duration = Duration::from_millis(5);

/// One sandbox, from its request to its removal.
pub(crate) struct SandboxHandle {
    id: SandboxId,
    view: Mutex<View>,
    processes: ProcessTable,
    orders: mpsc::Sender<Order>,
    events: Arc<EventLog>,
}

struct View {
    sandbox: Sandbox,
    agent: Option<GuestAgent>,
    /// All overlays of its disk, lowest first: they must not be removed under it.
    overlays: Vec<OverlayId>,
    /// All memory layers that it maps or that its next branch builds on.
    layers: Vec<LayerId>,
    lease: Lease,
    /// Its place among those that there may be.
    place: Option<Place>,
    /// What it was started from, which may have been removed since.
    origin: Option<SnapshotManifest>,
}

impl SandboxHandle {
    /// A handle, and the queue that its task takes orders from.
    pub(crate) fn new(
        sandbox: Sandbox,
        place: Place,
        events: Arc<EventLog>,
    ) -> (Self, mpsc::Receiver<Order>) {
        let (orders, queue) = mpsc::channel(ORDERS_WAITING_MAX);
        let options = &sandbox.options;
        let lease = Lease::new(sandbox.created_at, options.ttl, options.idle_timeout);
        let id = sandbox.id.clone();
        let view = View {
            agent: None,
            overlays: Vec::new(),
            layers: Vec::new(),
            origin: None,
            sandbox,
            lease,
            place: Some(place),
        };
        let processes = ProcessTable::default();
        (Self { id, view: Mutex::new(view), processes, orders, events }, queue)
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// A copy of what is known.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.lock().shown()
    }

    /// Changes or asks how long it may live.
    pub(super) fn lease<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        change(&mut self.lock().lease)
    }

    /// Somebody asks something of it.
    pub(crate) fn touch(&self) {
        self.lease(|lease| lease.touch(Instant::now()));
    }

    /// When to look whether its time is over.
    pub(super) fn lease_end(&self) -> Option<Instant> {
        self.touch_if_busy();
        self.lease(|lease| lease.end(Instant::now()))
    }

    /// A background process uses it.
    fn touch_if_busy(&self) {
        if self.processes.has_running() {
            self.touch();
        }
    }

    /// Whether its time is over.
    pub(super) fn has_expired(&self) -> bool {
        self.touch_if_busy();
        self.lease(|lease| lease.has_ended(Instant::now()))
    }

    /// It is removed: another may take its place.
    pub(crate) fn leave(&self) {
        self.lock().place = None;
    }

    /// Changes what is known, and tells of another state or another reason for it.
    ///
    /// # Panics
    /// In debug builds, when a change of state is not a hop of the table.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Sandbox)) {
        use SandboxState::{
            Branching, Dead, Gone, Paused, RollingBack, Running, Starting, Stopping,
        };
        let mut view = self.lock();
        let (before, reason) = (view.sandbox.state, view.sandbox.error.clone());
        change(&mut view.sandbox);
        let after = view.sandbox.state;
        debug_assert!(before == after || before.can_become(after), "{before} -> {after}");
        if after == Dead
            && let Some(place) = &mut view.place
        {
            place.give_back_memory();
        }
        let change = match (before, after) {
            (Starting, Running) => SandboxChange::Started,
            // Nobody has heard of it.
            (Starting, _) => return,
            (_, after) if after == before && reason == view.sandbox.error => return,
            (_, Dead) => SandboxChange::Dead,
            (_, Gone) => SandboxChange::Removed,
            (_, Starting | Running | Branching | Paused | RollingBack | Stopping) => {
                SandboxChange::State
            }
        };
        // While it is locked, so that events have the order of the changes.
        self.events.push(Change::Sandbox(change, Box::new(view.shown())));
    }

    pub(crate) fn set_agent(&self, agent: GuestAgent) {
        self.lock().agent = Some(agent);
    }

    /// The VM is gone: nobody can be talked to.
    pub(crate) fn forget_agent(&self) {
        self.lock().agent = None;
        self.processes.end_all("the sandbox ended");
    }

    /// The background processes that were started here.
    pub(crate) fn processes(&self) -> &ProcessTable {
        &self.processes
    }

    pub(crate) fn set_files(&self, layers: Vec<LayerId>, overlays: Vec<OverlayId>) {
        let mut view = self.lock();
        view.layers = layers;
        view.overlays = overlays;
    }

    /// This is what it is started from.
    pub(crate) fn set_origin(&self, manifest: SnapshotManifest) {
        self.lock().origin = Some(manifest);
    }

    /// What it was started from.
    pub(crate) fn origin(&self) -> Option<SnapshotManifest> {
        self.lock().origin.clone()
    }

    /// These layers are needed too.
    pub(crate) fn add_layers(&self, layers: Vec<LayerId>) {
        self.lock().layers.extend(layers);
    }

    /// Exactly these layers are needed. Returns those that no longer are.
    pub(crate) fn replace_layers(&self, layers: Vec<LayerId>) -> Vec<LayerId> {
        let mut view = self.lock();
        let before = std::mem::replace(&mut view.layers, layers);
        before.into_iter().filter(|id| !view.layers.contains(id)).collect()
    }

    pub(crate) fn replace_overlays(&self, overlays: Vec<OverlayId>) {
        self.lock().overlays = overlays;
    }

    pub(crate) fn push_overlay(&self, overlay: OverlayId) {
        self.lock().overlays.push(overlay);
    }

    pub(crate) fn overlays(&self) -> Vec<OverlayId> {
        self.lock().overlays.clone()
    }

    pub(crate) fn layers(&self) -> Vec<LayerId> {
        self.lock().layers.clone()
    }

    /// All files that it needs.
    pub(crate) fn files(&self) -> FileSet {
        let view = self.lock();
        FileSet::new(view.layers.iter().cloned(), view.overlays.iter().cloned())
    }

    /// The guest agent, if the sandbox runs.
    pub(crate) fn agent(&self) -> Result<GuestAgent, EngineError> {
        let view = self.lock();
        let runs = matches!(view.sandbox.state, SandboxState::Running | SandboxState::Branching);
        match &view.agent {
            Some(agent) if runs => Ok(agent.clone()),
            _ => Err(not_running(&view.sandbox)),
        }
    }

    /// A place in the queue of orders.
    pub(crate) fn queue(&self) -> Result<mpsc::Permit<'_, Order>, EngineError> {
        use mpsc::error::TrySendError;
        self.orders.try_reserve().map_err(|error| match error {
            TrySendError::Full(_) => EngineError::SandboxBusy { id: self.id.clone() },
            TrySendError::Closed(_) => not_running(&self.sandbox()),
        })
    }

    /// Queues an order behind all others, once there is room for it. A task that has ended takes
    /// none.
    pub(crate) async fn queue_last(&self, order: Order) {
        self.orders.send(order).await.ok();
    }

    /// Whether it has a VM, running or not.
    pub(crate) fn is_there(&self) -> bool {
        use SandboxState::{Dead, Gone, Stopping};
        !matches!(self.lock().sandbox.state, Dead | Gone | Stopping)
    }

    /// The result of a request to its guest agent. Where that broke off, the sandbox did not run:
    /// it was removed or paused meanwhile, or its VMM ended, which may be known a moment later.
    pub(crate) async fn explain<T>(&self, done: Result<T, GuestError>) -> Result<T, EngineError> {
        let error = match done {
            Ok(value) => return Ok(value),
            Err(error @ GuestError::Closed { .. }) => error,
            Err(other) => return Err(other.into()),
        };
        let stopped = tokio::time::timeout(END_KNOWN_DEADLINE, async {
            while self.agent().is_ok() {
                tokio::time::sleep(END_KNOWN_POLL).await;
            }
        });
        if stopped.await.is_err() {
            return Err(error.into());
        }
        let sandbox = self.sandbox();
        let limit = sandbox.options.memory_limit.filter(|_| sandbox.memory_limit_reached);
        Err(match limit {
            Some(limit) => VmmError::MemoryLimitReached { limit }.into(),
            None => self.not_running(),
        })
    }

    /// The error for a request that needs a running sandbox.
    pub(crate) fn not_running(&self) -> EngineError {
        not_running(&self.lock().sandbox)
    }
}

impl View {
    /// What others get to see.
    fn shown(&self) -> Sandbox {
        let now = Instant::now();
        let left = self.lease.end(now).map(|end| end.saturating_duration_since(now));
        Sandbox { expires_at: left.map(|left| SystemTime::now() + left), ..self.sandbox.clone() }
    }
}

fn not_running(sandbox: &Sandbox) -> EngineError {
    EngineError::SandboxNotRunning {
        id: sandbox.id.clone(),
        state: sandbox.state,
        reason: sandbox.error.clone(),
    }
}
