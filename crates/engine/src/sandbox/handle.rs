//! What the engine knows of a sandbox without asking its task.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::SnapshotManifest;
use forkd_types::{LayerId, SandboxId, SandboxState};
use tokio::sync::{mpsc, oneshot};

use crate::branch::BranchOrder;
use crate::guest::GuestAgent;
use crate::{EngineError, Sandbox};

/// What a sandbox's task is asked for. Orders are done in the order of their arrival.
pub(crate) enum Order {
    /// Take a branch.
    Branch(Box<BranchOrder>),
    /// End the VM and remove what belongs to it.
    Remove(oneshot::Sender<()>),
    /// Let go of the VM, which runs on.
    Release(oneshot::Sender<()>),
}

/// Orders that may wait for one sandbox; more are refused as `busy`.
const ORDERS_WAITING_MAX: usize = 64;

/// One sandbox, from its request to its removal.
pub(crate) struct SandboxHandle {
    id: SandboxId,
    view: Mutex<View>,
    orders: mpsc::Sender<Order>,
}

struct View {
    sandbox: Sandbox,
    agent: Option<GuestAgent>,
    /// All overlays of its disk, lowest first: they must not be removed under it.
    overlays: Vec<LayerId>,
    /// All memory layers that it maps or that its next branch builds on.
    layers: Vec<LayerId>,
    /// What it was started from, which may have been removed since.
    origin: Option<SnapshotManifest>,
}

impl SandboxHandle {
    /// A handle, and the queue that its task takes orders from.
    pub(crate) fn new(sandbox: Sandbox) -> (Self, mpsc::Receiver<Order>) {
        let (orders, queue) = mpsc::channel(ORDERS_WAITING_MAX);
        let (overlays, layers) = (Vec::new(), Vec::new());
        let view = View { agent: None, overlays, layers, origin: None, sandbox };
        let id = view.sandbox.id.clone();
        (Self { id, view: Mutex::new(view), orders }, queue)
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// A copy of what is known.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.lock().sandbox.clone()
    }

    /// Changes what is known.
    ///
    /// # Panics
    /// In debug builds, when a change of state is not a hop of the table.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Sandbox)) {
        let mut view = self.lock();
        let before = view.sandbox.state;
        change(&mut view.sandbox);
        let after = view.sandbox.state;
        debug_assert!(before == after || before.can_become(after), "{before} -> {after}");
    }

    pub(crate) fn set_agent(&self, agent: GuestAgent) {
        self.lock().agent = Some(agent);
    }

    /// The VM is gone: nobody can be talked to.
    pub(crate) fn forget_agent(&self) {
        self.lock().agent = None;
    }

    pub(crate) fn set_files(&self, layers: Vec<LayerId>, overlays: Vec<LayerId>) {
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

    pub(crate) fn replace_overlays(&self, overlays: Vec<LayerId>) {
        self.lock().overlays = overlays;
    }

    pub(crate) fn push_overlay(&self, overlay: LayerId) {
        self.lock().overlays.push(overlay);
    }

    pub(crate) fn overlays(&self) -> Vec<LayerId> {
        self.lock().overlays.clone()
    }

    pub(crate) fn layers(&self) -> Vec<LayerId> {
        self.lock().layers.clone()
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

    /// Queues an order.
    pub(crate) fn order(&self, order: Order) -> Result<(), EngineError> {
        use mpsc::error::TrySendError;
        self.orders.try_send(order).map_err(|error| match error {
            TrySendError::Full(_) => EngineError::SandboxBusy { id: self.id.clone() },
            TrySendError::Closed(_) => not_running(&self.sandbox()),
        })
    }

    /// The error for a request that needs a running sandbox.
    pub(crate) fn not_running(&self) -> EngineError {
        not_running(&self.lock().sandbox)
    }
}

fn not_running(sandbox: &Sandbox) -> EngineError {
    EngineError::SandboxNotRunning {
        id: sandbox.id.clone(),
        state: sandbox.state,
        reason: sandbox.error.clone(),
    }
}
