//! Figures of a branch, as the engine tells them and as the registry keeps them.

use std::time::Duration;

use forkd_store::SnapshotFigures;
use forkd_types::{BranchPhase, PhaseTimes};

use crate::BranchReport;

/// Figures as the registry keeps them.
pub(crate) fn to_figures(report: &BranchReport) -> SnapshotFigures {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    SnapshotFigures {
        mode: report.mode.name().to_owned(),
        phases_us: report.phases.iter().map(|(p, t)| (p.name().to_owned(), us(t))).collect(),
        pause_us: us(report.pause),
        held_by_vmm_us: report.held_by_vmm.map(us),
        ready_us: us(report.ready),
        captured: report.captured,
        dirty: report.dirty,
        stored: report.stored,
        dirty_stored: report.dirty_stored,
        diff_pause_us: report.diff_pause.map(us),
        faults: report.faults,
        fault_service_median_us: report.fault_service_median.map(us),
        fault_service_max_us: report.fault_service_max.map(us),
    }
}

/// The reverse of [`to_figures`]. Names of another version are left out.
pub(crate) fn from_figures(figures: &SnapshotFigures) -> BranchReport {
    let mut phases = PhaseTimes::default();
    for phase in BranchPhase::ALL {
        if let Some(us) = figures.phases_us.get(phase.name()) {
            phases.record(phase, Duration::from_micros(*us));
        }
    }
    BranchReport {
        mode: figures.mode.parse().unwrap_or_default(),
        phases,
        pause: Duration::from_micros(figures.pause_us),
        held_by_vmm: figures.held_by_vmm_us.map(Duration::from_micros),
        ready: Duration::from_micros(figures.ready_us),
        captured: figures.captured,
        dirty: figures.dirty,
        stored: figures.stored,
        dirty_stored: figures.dirty_stored,
        diff_pause: figures.diff_pause_us.map(Duration::from_micros),
        faults: figures.faults,
        fault_service_median: figures.fault_service_median_us.map(Duration::from_micros),
        fault_service_max: figures.fault_service_max_us.map(Duration::from_micros),
    }
}
