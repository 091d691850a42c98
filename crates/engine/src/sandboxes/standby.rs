//! VMMs that stand by: processes that were started ahead of need, in their jail, with an empty
//! overlay, and wait for the state of any snapshot of their shape. A child that gets one does not
//! wait for a process to start.
//!
//! Guarantees: each is given to one sandbox at most, which then has its id; whatever is not given
//! away goes with all its files when it is dropped. Where the engine dies, the next one ends them,
//! because no row names them.
//!
//! Does not do: start them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forkd_types::{ByteCount, OverlayId, SandboxId, StandbyStatus};
use forkd_vmm::Vm;
use tokio::sync::Notify;

use super::{Demand, ReservedId, Sandboxes, Shape, Step};
use crate::guest::GuestAgent;
use crate::host::{is_short_of_memory, process_number};
use crate::snapshots::Files;

/// Between two looks at the host's memory while VMMs stand by.
const MEMORY_POLL: Duration = Duration::from_secs(10);

/// The VMMs that stand by.
#[derive(Debug)]
pub(crate) struct Standby {
    state: Mutex<State>,
    /// There may be something to do.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    demand: Demand,
    ready: Vec<StandbyVmm>,
    status: StandbyStatus,
}

/// What stands by, and why not more does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StandbyUsage {
    /// How many VMMs there may be.
    pub places: usize,
    /// What they are of.
    pub ready: Vec<StandbyKind>,
    /// Whether there are as many as there should be, or why not.
    pub status: StandbyStatus,
}

/// VMMs that stand by for the same snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyKind {
    /// The image of these snapshots.
    pub image: String,
    /// Their guest RAM.
    pub memory: ByteCount,
    /// Their virtual CPUs.
    pub vcpus: u32,
    /// How many of these there are.
    pub count: usize,
}

impl Standby {
    /// With room for so many.
    pub(crate) fn new(places: usize) -> Self {
        let status = if places == 0 { StandbyStatus::Off } else { StandbyStatus::NoDemand };
        let state = State { demand: Demand::new(places), ready: Vec::new(), status };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Waits until there may be something to do.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// From now on it stands by.
    pub(crate) fn add(&self, vmm: StandbyVmm) {
        self.lock().ready.push(vmm);
    }

    /// No VMM of this shape can be started.
    pub(crate) fn forget(&self, shape: &Shape) {
        let mut state = self.lock();
        state.demand.forget(shape);
        state.status = StandbyStatus::Failed;
    }

    /// One would be started, if the host were not busy.
    pub(crate) fn hold_back(&self) {
        self.lock().status = StandbyStatus::Busy;
    }

    /// What stands by, and why not more does.
    pub(crate) fn usage(&self) -> StandbyUsage {
        let state = self.lock();
        let mut ready: Vec<StandbyKind> = Vec::new();
        for shape in state.ready.iter().map(|vmm| &vmm.shape) {
            let (image, memory, vcpus) = (shape.image.clone(), shape.memory, shape.vcpus);
            let kind = StandbyKind { image, memory, vcpus, count: 1 };
            match ready
                .iter_mut()
                .find(|known| StandbyKind { count: 1, ..(*known).clone() } == kind)
            {
                Some(known) => known.count += 1,
                None => ready.push(kind),
            }
        }
        StandbyUsage { places: state.demand.places(), ready, status: state.status }
    }

    /// All of them, to be ended.
    pub(crate) fn take_all(&self) -> Vec<StandbyVmm> {
        std::mem::take(&mut self.lock().ready)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a sandbox that is about to be started, if one of its shape is alive.
    pub(crate) fn claim(&self, shape: &Shape) -> Option<StandbyVmm> {
        let mut state = self.lock();
        state.demand.note(shape, Instant::now());
        let (dead, mut ready) = std::mem::take(&mut state.ready)
            .into_iter()
            .partition::<Vec<_>, _>(StandbyVmm::is_dead);
        let claimed = ready.iter().position(|vmm| vmm.shape == *shape);
        let claimed = claimed.map(|index| ready.remove(index));
        state.ready = ready;
        drop(state);
        drop(dead);
        self.changed.notify_one();
        claimed
    }

    /// Sandboxes of this shape are likely to be started.
    pub(crate) fn expect(&self, shape: &Shape) {
        self.lock().demand.note(shape, Instant::now());
        self.changed.notify_one();
    }

    /// The processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let state = self.lock();
        let vms = state.ready.iter().filter_map(|vmm| vmm.vm.as_ref());
        vms.filter_map(|vm| process_number(vm.pid())).collect()
    }

    /// What is to be done next.
    pub(crate) fn step(&self) -> Step {
        let mut state = self.lock();
        let shapes: Vec<Shape> = state.ready.iter().map(|vmm| vmm.shape.clone()).collect();
        let now = Instant::now();
        let next_look = now + MEMORY_POLL;
        let (step, status) = match state.demand.step(&shapes, now) {
            // None stands by, and none is wanted. What could not be started is wanted no more: that
            // is still to be seen.
            Step::Wait(None) if state.status == StandbyStatus::Failed => return Step::Wait(None),
            Step::Wait(None) => (Step::Wait(None), StandbyStatus::NoDemand),
            _ if is_short_of_memory() => match shapes.is_empty() {
                true => (Step::Wait(Some(next_look)), StandbyStatus::ShortOfMemory),
                false => (Step::End(0), StandbyStatus::ShortOfMemory),
            },
            Step::Wait(Some(until)) => {
                (Step::Wait(Some(until.min(next_look))), StandbyStatus::Full)
            }
            Step::Start(shape) => (Step::Start(shape), StandbyStatus::Starting),
            Step::End(index) => (Step::End(index), state.status),
        };
        if state.demand.places() > 0 {
            state.status = status;
        }
        step
    }

    /// The one with this index, to be ended.
    pub(crate) fn take(&self, index: usize) -> Option<StandbyVmm> {
        let mut state = self.lock();
        (index < state.ready.len()).then(|| state.ready.remove(index))
    }
}

/// One of them. Dropping it ends its process and removes its files.
pub(crate) struct StandbyVmm {
    pub(crate) id: SandboxId,
    pub(crate) shape: Shape,
    pub(crate) vm: Option<Box<dyn Vm>>,
    pub(crate) agent: Option<GuestAgent>,
    /// The empty one, on which it has its disk.
    pub(crate) overlay: Option<OverlayId>,
    given_away: bool,
    sandboxes: Arc<Sandboxes>,
    files: Arc<Files>,
    /// Until the process is gone, or its sandbox is there.
    _reserved: ReservedId,
}

impl fmt::Debug for StandbyVmm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandbyVmm").field("id", &self.id).finish_non_exhaustive()
    }
}

impl StandbyVmm {
    /// One that is not started yet, with an id.
    pub(crate) fn reserve(shape: Shape, sandboxes: Arc<Sandboxes>, files: Arc<Files>) -> Self {
        let reserved = sandboxes.reserve_id();
        let id = reserved.id().clone();
        let (vm, agent, overlay) = (None, None, None);
        let given_away = false;
        Self { id, shape, vm, agent, overlay, given_away, sandboxes, files, _reserved: reserved }
    }

    fn is_dead(&self) -> bool {
        self.vm.as_ref().is_none_or(|vm| vm.has_exited())
    }

    /// Gives it to the sandbox with its id: what it has is the sandbox's to remove.
    pub(crate) fn give_away(mut self) -> Option<(Box<dyn Vm>, GuestAgent)> {
        let (vm, agent) = self.vm.take().zip(self.agent.take())?;
        self.given_away = true;
        Some((vm, agent))
    }
}

impl Drop for StandbyVmm {
    fn drop(&mut self) {
        if self.given_away {
            return;
        }
        if let Some(vm) = self.vm.take() {
            vm.kill();
        }
        self.sandboxes.remove_run_directory(&self.id);
        self.files.remove_vm_directory(&self.id);
        if let Some(overlay) = &self.overlay {
            self.files.remove_overlay(overlay);
        }
    }
}
