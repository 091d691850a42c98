//! VMMs that stand by: processes that were started ahead of need, in their jail, with an empty
//! overlay, and wait for the state of any snapshot of their shape. A child that gets one does not
//! wait for a process to start. Some are *fitted*: they have the state of a snapshot that is asked
//! for again and again, and its children only renew themselves.
//!
//! Guarantees: each is given to one sandbox at most, which then has its id. One that is fitted
//! never gets another state: it becomes a child of that snapshot, or is ended. Whatever is not
//! given away goes with all its files when it is dropped. Where the engine dies, the next one ends
//! them, because no row names them.
//!
//! Does not do: start or fit them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forkd_types::{ByteCount, OverlayId, SandboxId, StandbyStatus};
use forkd_vmm::Vm;
use tokio::sync::Notify;

use super::{Demand, Origin, ReservedId, Sandboxes, Shape, Step, Waiting};
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
    /// How many of them have the state of a snapshot already.
    pub fitted: usize,
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

    /// Ends those that have the state of a snapshot, so that nothing keeps its files but who needs
    /// them. None is fitted again before its snapshot is asked for twice.
    pub(crate) fn end_fitted(&self) {
        let mut state = self.lock();
        state.demand.retain_origins(|_| false);
        let ready = std::mem::take(&mut state.ready);
        let (fitted, others) =
            ready.into_iter().partition::<Vec<_>, _>(|vmm| vmm.waiting.origin.is_some());
        state.ready = others;
        drop(state);
        drop(fitted);
        self.changed.notify_one();
    }

    /// No VMM can be fitted with this snapshot.
    pub(crate) fn forget_origin(&self, origin: &Origin) {
        self.lock().demand.retain_origins(|known| known != origin);
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
        for shape in state.ready.iter().map(|vmm| &vmm.waiting.shape) {
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
        let fitted = state.ready.iter().filter(|vmm| vmm.is_fitted()).count();
        StandbyUsage { places: state.demand.places(), ready, fitted, status: state.status }
    }

    /// All of them, to be ended.
    pub(crate) fn take_all(&self) -> Vec<StandbyVmm> {
        std::mem::take(&mut self.lock().ready)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a child of `origin` that is about to be started: one that is fitted with it if there
    /// is one, or else one that fits any snapshot of this shape.
    pub(crate) fn claim(
        &self,
        shape: &Shape,
        origin: &Origin,
        sibling: Sibling,
    ) -> Option<StandbyVmm> {
        let mut state = self.lock();
        match sibling {
            Sibling::First => state.demand.note(shape, Some(origin), Instant::now()),
            Sibling::Later => state.demand.note_again(shape, Instant::now()),
        }
        let (dead, mut ready) = std::mem::take(&mut state.ready)
            .into_iter()
            .partition::<Vec<_>, _>(StandbyVmm::is_dead);
        let with = |state: Option<&Origin>| {
            let fits = |vmm: &Waiting| vmm.shape == *shape && vmm.origin.as_ref() == state;
            ready.iter().position(|vmm| fits(&vmm.waiting))
        };
        let claimed = with(Some(origin)).or_else(|| with(None));
        let claimed = claimed.map(|index| ready.remove(index));
        state.ready = ready;
        drop(state);
        drop(dead);
        self.changed.notify_one();
        claimed
    }

    /// Sandboxes of this shape are likely to be started.
    pub(crate) fn expect(&self, shape: &Shape) {
        self.lock().demand.note(shape, None, Instant::now());
        self.changed.notify_one();
    }

    /// The processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let state = self.lock();
        let vms = state.ready.iter().filter_map(|vmm| vmm.vm.as_ref());
        vms.filter_map(|vm| process_number(vm.pid())).collect()
    }

    /// What is to be done next. `is_there` tells whether children of a snapshot can be started.
    pub(crate) fn step(&self, is_there: impl Fn(&Origin) -> bool) -> Step {
        let mut state = self.lock();
        let is_lost = |vmm: &StandbyVmm| vmm.waiting.origin.as_ref().is_some_and(|o| !is_there(o));
        // It keeps files that nobody else needs.
        if let Some(index) = state.ready.iter().position(is_lost) {
            return Step::End(index);
        }
        state.demand.retain_origins(&is_there);
        let ready: Vec<Waiting> = state.ready.iter().map(|vmm| vmm.waiting.clone()).collect();
        let now = Instant::now();
        let next_look = now + MEMORY_POLL;
        let (step, status) = match state.demand.step(&ready, now) {
            // None stands by, and none is wanted. What could not be started is wanted no more: that
            // is still to be seen.
            Step::Wait(None) if state.status == StandbyStatus::Failed => return Step::Wait(None),
            Step::Wait(None) => (Step::Wait(None), StandbyStatus::NoDemand),
            _ if is_short_of_memory() => match ready.is_empty() {
                true => (Step::Wait(Some(next_look)), StandbyStatus::ShortOfMemory),
                false => (Step::End(0), StandbyStatus::ShortOfMemory),
            },
            Step::Wait(Some(until)) => {
                (Step::Wait(Some(until.min(next_look))), StandbyStatus::Full)
            }
            Step::Start(shape) => (Step::Start(shape), StandbyStatus::Starting),
            // As many as may stand by already.
            Step::Fit(index, origin) => (Step::Fit(index, origin), StandbyStatus::Full),
            Step::End(index) => (Step::End(index), state.status),
        };
        if state.demand.places() > 0 {
            state.status = status;
        }
        step
    }

    /// The one with this index, to be ended or fitted.
    pub(crate) fn take(&self, index: usize) -> Option<StandbyVmm> {
        let mut state = self.lock();
        (index < state.ready.len()).then(|| state.ready.remove(index))
    }
}

/// Which child of its request a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sibling {
    First,
    Later,
}

/// One of them. Dropping it ends its process and removes its files.
pub(crate) struct StandbyVmm {
    pub(crate) id: SandboxId,
    pub(crate) waiting: Waiting,
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
        let waiting = Waiting { shape, origin: None };
        let given_away = false;
        Self { id, waiting, vm, agent, overlay, given_away, sandboxes, files, _reserved: reserved }
    }

    /// Whether it has the state of its snapshot already.
    pub(crate) const fn is_fitted(&self) -> bool {
        self.waiting.origin.is_some()
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
        // What it was fitted with.
        self.files.drop_claim(&self.id);
    }
}
