//! The phases of one branch as they happen: their times, and the probe's view of them.

use std::time::Instant;

use forkd_types::{BranchPhase, PhaseTimes};
use forkd_vmm::Vm;

use super::probe::Probe;
use crate::EngineError;

/// Times phases, and lets a probe look on.
pub(super) struct Steps<'a> {
    pub(super) times: PhaseTimes<BranchPhase>,
    pub(super) probe: Option<Probe<'a>>,
}

impl Steps<'_> {
    /// Does the work of `phase`, or a part of it, and adds to its time.
    pub(super) fn time<T, E>(
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

    /// The source runs again.
    pub(super) fn resumed(&self, vm: &mut dyn Vm) -> Result<(), EngineError> {
        self.probe.as_ref().map_or(Ok(()), |(probe, branch)| probe.after_resume(branch, vm))
    }
}
