//! A branch: an immutable snapshot of a running sandbox, with the shortest pause.
//!
//! ```text
//! prepare -> [pause -> save device state -> freeze disk -> protect -> resume]   (pause window)
//!         -> sweep -> seal -> publish
//! ```
//!
//! `prepare` makes everything that can be made while the guest runs; `window` is the pause window
//! and nothing else; `seal` makes the snapshot usable; `publish` makes it durable, in the
//! background. Afterwards `settle` deals with a VMM that was silent, `flatten` keeps the source's
//! memory and disk shallow, and `stand_by` makes ahead what the next branch needs.
//!
//! The three modes are one pipeline: `full` and `diff` copy the pages before the guest resumes,
//! `live` after; `full` takes the pages of the layers below as well.

mod flatten;
mod prepare;
mod probe;
mod publish;
mod seal;
mod settle;
mod stand_by;
mod window;

pub(crate) use flatten::{flatten_disk, flatten_inherited_disk, merge_deltas};
pub use probe::{BranchProbe, ProbedBranch};
pub(crate) use publish::in_background as publish_in_background;
pub(crate) use settle::{remove_device_state, settle};
pub(crate) use stand_by::stand_by;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use forkd_capture::Captured;
use forkd_store::FileSet;
use forkd_types::{BranchMode, BranchPhase, PhaseTimes, SnapshotTag};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::admission::BranchPlace;
use crate::catalog::to_figures;
use crate::engine::Inner;
use crate::guest::{GuestAgent, GuestError};
use crate::operation::Running;
use crate::sandbox::{InUse, Machine, SandboxHandle, WatchedMemory};
use crate::{BranchReport, EngineError, Flaw};

/// A branch that a sandbox's task is asked for.
pub(crate) struct BranchOrder {
    pub(crate) tag: SnapshotTag,
    pub(crate) mode: BranchMode,
    pub(crate) requested_at: Instant,
    pub(crate) operation: Running,
    /// Held until it is over.
    pub(crate) place: BranchPlace,
    /// The source is in use until it is over.
    pub(crate) source: InUse,
    /// Told when the source runs again.
    pub(crate) resumed: oneshot::Sender<()>,
    /// Told how it ended.
    pub(crate) done: oneshot::Sender<Result<(), EngineError>>,
}

impl BranchOrder {
    /// Answers without doing anything.
    pub(crate) fn refuse(self, error: EngineError) {
        let result = Err(error);
        self.operation.end(&result);
        // Whoever asked may have gone away.
        self.done.send(result).ok();
    }
}

/// The phases of one branch as they happen: their times, and the probe's view of them.
struct Steps<'a> {
    times: PhaseTimes,
    probe: Option<(&'a dyn BranchProbe, ProbedBranch<'a>)>,
}

impl Steps<'_> {
    /// Does the work of `phase`, or a part of it, and adds to its time.
    fn time<T, E>(
        &mut self,
        phase: BranchPhase,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, EngineError>
    where
        EngineError: From<E>,
    {
        if let Some((probe, branch)) = &self.probe
            && self.times.get(phase).is_none()
        {
            probe.before(phase, branch)?;
        }
        let begun = Instant::now();
        let value = work();
        self.times.record(phase, begun.elapsed());
        Ok(value?)
    }
}

/// Takes a branch and answers the order. Blocks for as long as it takes. The machine comes back in
/// any case, running unless its VMM died.
pub(crate) fn run(
    inner: &Arc<Inner>,
    handle: &SandboxHandle,
    mut machine: Machine,
    agent: &GuestAgent,
    runtime: &Handle,
    order: BranchOrder,
) -> Machine {
    let BranchOrder { tag, mode, requested_at, operation, place, source, resumed, done } = order;
    let (sandbox, id) = (handle.id(), operation.id());
    let span = tracing::info_span!("branch", %sandbox, snapshot = %tag, operation = %id, %mode);
    let _entered = span.enter();
    let operation = &operation;
    let context =
        Context { inner, handle, agent, runtime, tag: &tag, mode, requested_at, operation };
    // The paused guard resumes while a panic unwinds; the sandbox need not die of it.
    let taken = AssertUnwindSafe(|| context.take(&mut machine, resumed));
    let result = std::panic::catch_unwind(taken)
        .unwrap_or_else(|_| Err(EngineError::Internal("the branch panicked".to_owned())))
        .map_err(|error| explain(error, &mut machine));
    match &result {
        Ok(()) => {
            tracing::info!(took = ?requested_at.elapsed(), "branched");
            publish::in_background(inner, &tag);
        }
        Err(error) => {
            tracing::info!(%error, "branch failed");
            settle::remove_device_state(inner, handle.id());
            inner.catalog.fail(&inner.registry, &tag, &describe(error));
        }
    }
    operation.end(&result);
    drop((place, source));
    // Whoever asked may have gone away; the snapshot is there all the same.
    done.send(result).ok();
    let superseded = handle.replace_layers(machine.layers());
    inner.collect(&FileSet::new(superseded, []));
    machine
}

/// Memory that cannot be captured, or an agent whose connection breaks, is mostly that of a VMM
/// that is gone.
fn explain(error: EngineError, machine: &mut Machine) -> EngineError {
    let during = match error {
        EngineError::Capture(_) => "while its memory was captured",
        EngineError::Guest(GuestError::Closed { .. }) => "while its agent was made quiet",
        other => return other,
    };
    machine.vm.exit_error(during).map_or(error, EngineError::from)
}

/// An error with its causes, in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

/// What all phases of one branch share.
struct Context<'a> {
    inner: &'a Arc<Inner>,
    handle: &'a SandboxHandle,
    agent: &'a GuestAgent,
    runtime: &'a Handle,
    tag: &'a SnapshotTag,
    mode: BranchMode,
    requested_at: Instant,
    operation: &'a Running,
}

impl Context<'_> {
    fn flaw(&self) -> Option<Flaw> {
        self.inner.config.probe.as_ref().and_then(|probe| probe.flaw())
    }

    fn take(&self, machine: &mut Machine, resumed: oneshot::Sender<()>) -> Result<(), EngineError> {
        self.operation.check()?;
        self.operation.step(BranchPhase::Prepare.name());
        let ram = machine.vm.ram();
        let branch =
            ProbedBranch { sandbox: self.handle.id(), tag: self.tag, mode: self.mode, ram };
        let probe = self.inner.config.probe.as_deref().map(|probe| (probe, branch));
        let mut steps = Steps { times: PhaseTimes::default(), probe };
        let prepared = steps.time(BranchPhase::Prepare, || self.prepare(machine))?;
        let after = self.window(machine, prepared, &mut steps)?;
        let mut report = BranchReport {
            mode: self.mode,
            phases: steps.times.clone(),
            pause: after.resumed.pause,
            held_by_vmm: after.resumed.held_by_vmm,
            ..BranchReport::default()
        };
        self.inner.catalog.show_figures(self.tag, to_figures(&report));
        // Nobody waits for this when the request is answered at the end.
        resumed.send(()).ok();
        let Captured { target, pages, stats } = match after.capture {
            window::Capture::Running(closed) => {
                self.operation.step(BranchPhase::Sweep.name());
                steps.time(BranchPhase::Sweep, || closed.sweep())?
            }
            window::Capture::Done(captured) => captured,
        };
        report.captured = stats.captured.bytes();
        report.dirty = (stats.in_dirty_set - stats.unchanged).bytes();
        report.stored = stats.stored.bytes();
        report.dirty_stored = stats.dirty_stored.bytes();
        report.diff_pause = match self.mode {
            BranchMode::Live => None,
            BranchMode::Diff | BranchMode::Full => {
                Some(report.pause.saturating_sub(stats.beyond_dirty))
            }
        };
        report.faults = stats.faults;
        report.fault_service_median = stats.fault_service_median;
        report.fault_service_max = stats.fault_service_max;
        self.inner.tally.add_faults(&stats.fault_service);
        self.operation.step(BranchPhase::Seal.name());
        let below = steps.time(BranchPhase::Seal, || {
            self.seal_layer(&after.below, after.sink, pages, &after.device_state)
        })?;
        report.phases = steps.times;
        report.ready = self.requested_at.elapsed();
        // Before the snapshot can be seen, and deleted.
        self.handle.add_layers(below.ids());
        self.seal_snapshot(&below, after.frozen_overlays, &report)?;
        // Only now: what the target calls clean is in a layer that is kept.
        machine.put_memory(WatchedMemory { target, below });
        Ok(())
    }
}
