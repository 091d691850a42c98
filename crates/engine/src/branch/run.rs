//! One branch from its request to its answer.

use std::panic::AssertUnwindSafe;

use forkd_capture::{CaptureStats, Captured};
use forkd_store::FileSet;
use forkd_types::{BranchMode, BranchPhase, PhaseTimes};
use forkd_vmm::Resumed;
use tokio::sync::oneshot;

use super::Branches;
use super::context::Context;
use super::device_state::remove_device_state;
use super::probe::ProbedBranch;
use super::steps::Steps;
use super::window::Capture;
use crate::guest::{GuestAgent, GuestError};
use crate::sandboxes::{BranchOrder, Machine, SandboxHandle, WatchedMemory};
use crate::snapshots::to_figures;
use crate::{BranchReport, EngineError, describe};

impl Branches {
    /// Takes a branch and answers the order. Blocks for as long as it takes. The machine comes back
    /// in any case, running unless its VMM died.
    pub(crate) fn run(
        &self,
        handle: &SandboxHandle,
        mut machine: Machine,
        agent: &GuestAgent,
        order: BranchOrder,
    ) -> Machine {
        let BranchOrder { tag, mode, requested_at, operation, place, source, resumed, done } =
            order;
        let (sandbox, id) = (handle.id(), operation.id());
        let span = tracing::info_span!("branch", %sandbox, snapshot = %tag, operation = %id, %mode);
        let _entered = span.enter();
        let context = Context {
            branches: self,
            handle,
            agent,
            tag: &tag,
            mode,
            requested_at,
            operation: &operation,
        };
        // The window's guard resumes while a panic unwinds; the sandbox need not die of it.
        let taken = AssertUnwindSafe(|| context.take(&mut machine, resumed));
        let result = std::panic::catch_unwind(taken)
            .unwrap_or_else(|_| Err(EngineError::Internal("the branch panicked".to_owned())))
            .map_err(|error| explain(error, &mut machine));
        match &result {
            Ok(()) => {
                tracing::info!(took = ?requested_at.elapsed(), "branched");
                self.snapshots.publish_in_background(&tag);
            }
            Err(error) => {
                tracing::info!(%error, "branch failed");
                remove_device_state(&self.snapshots.files, handle.id());
                self.snapshots.catalog.fail(&tag, &describe(error));
            }
        }
        operation.finish(&result);
        drop((place, source));
        // Whoever asked may have gone away; the snapshot is there all the same.
        done.send(result).ok();
        self.snapshots.files.claim(handle.id(), machine.files());
        machine
    }
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

impl Context<'_> {
    fn take(&self, machine: &mut Machine, resumed: oneshot::Sender<()>) -> Result<(), EngineError> {
        self.operation.check()?;
        self.operation.step(BranchPhase::Prepare.name());
        let ram = machine.vm.ram();
        let branch =
            ProbedBranch { sandbox: self.handle.id(), tag: self.tag, mode: self.mode, ram };
        let probe = self.branches.probe.as_deref().map(|probe| (probe, branch));
        let mut steps = Steps { times: PhaseTimes::default(), probe };
        let prepared = steps.time(BranchPhase::Prepare, || self.prepare(machine, probe))?;
        let after = self.window(machine, prepared, &mut steps)?;
        let times = steps.times.clone();
        let mut report =
            BranchReport { mode: self.mode, phases: times, ..of_window(&after.resumed) };
        let snapshots = &self.branches.snapshots;
        snapshots.catalog.show_figures(self.tag, to_figures(&report));
        // Nobody waits for this when the request is answered at the end.
        resumed.send(()).ok();
        let Captured { target, pages, stats } = match after.capture {
            Capture::Running(closed) => {
                self.operation.step(BranchPhase::Sweep.name());
                steps.time(BranchPhase::Sweep, || closed.sweep())?
            }
            Capture::Done(captured) => captured,
        };
        add_capture(&mut report, &stats);
        self.branches.tally.add_faults(&stats.fault_service);
        self.operation.step(BranchPhase::Seal.name());
        let below = steps.time(BranchPhase::Seal, || {
            // Before anybody can use the snapshot.
            machine.vm.close_frozen_overlays()?;
            self.seal_layer(&after.below, after.sink, pages, &after.device_state)
        })?;
        report.phases = steps.times;
        report.ready = self.requested_at.elapsed();
        // Before the snapshot can be seen, and deleted.
        snapshots.files.claim_also(self.handle.id(), FileSet::new(below.ids(), []));
        self.seal_snapshot(&below, after.frozen_overlays, after.network, &report)?;
        // Only now: what the target calls clean is in a layer that is kept.
        machine.put_memory(WatchedMemory { target, below });
        Ok(())
    }
}

fn of_window(resumed: &Resumed) -> BranchReport {
    let (pause, held_by_vmm) = (resumed.pause, resumed.held_by_vmm);
    BranchReport { pause, held_by_vmm, ..BranchReport::default() }
}

fn add_capture(report: &mut BranchReport, stats: &CaptureStats) {
    report.captured = stats.captured.bytes();
    report.dirty = (stats.in_dirty_set - stats.unchanged).bytes();
    report.stored = stats.stored.bytes();
    report.dirty_stored = stats.dirty_stored.bytes();
    report.diff_pause = match report.mode {
        BranchMode::Live => None,
        BranchMode::Diff | BranchMode::Full => {
            Some(report.pause.saturating_sub(stats.beyond_dirty))
        }
    };
    report.faults = stats.faults;
    report.fault_service_median = stats.fault_service_median;
    report.fault_service_max = stats.fault_service_max;
}
