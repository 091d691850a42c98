//! Snapshots in memory and in the registry, kept the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use forkd_store::{Registry, SnapshotFigures, SnapshotManifest, SnapshotRow, StoreError};
use forkd_types::{BranchPhase, PhaseTimes, SnapshotStatus, SnapshotTag};
use tokio::sync::Notify;

use crate::{BranchReport, EngineError};

/// All snapshots. Every change goes to the registry first.
pub(crate) struct Catalog {
    rows: Mutex<BTreeMap<SnapshotTag, SnapshotRow>>,
    changed: Notify,
}

impl Catalog {
    pub(crate) fn new(rows: Vec<SnapshotRow>) -> Self {
        let rows = rows.into_iter().map(|row| (row.tag.clone(), row)).collect();
        Self { rows: Mutex::new(rows), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SnapshotTag, SnapshotRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a tag for a snapshot that is going to be written. The tag of a failed one is free.
    pub(crate) fn reserve(
        &self,
        registry: &Registry,
        tag: &SnapshotTag,
        manifest: SnapshotManifest,
    ) -> Result<(), EngineError> {
        let mut rows = self.lock();
        if let Some(row) = rows.get(tag).filter(|row| row.status != SnapshotStatus::Failed) {
            return Err(EngineError::TagTaken { tag: tag.clone(), status: row.status });
        }
        let row = SnapshotRow {
            tag: tag.clone(),
            status: SnapshotStatus::Writing,
            durable: false,
            created_at: SystemTime::now(),
            manifest,
            figures: None,
            error: None,
        };
        registry.put_snapshot(&row)?;
        rows.insert(tag.clone(), row);
        Ok(())
    }

    /// Changes a row, in the registry and then here.
    pub(crate) fn update(
        &self,
        registry: &Registry,
        tag: &SnapshotTag,
        change: impl FnOnce(&mut SnapshotRow),
    ) -> Result<SnapshotRow, EngineError> {
        let mut rows = self.lock();
        let row =
            rows.get_mut(tag).ok_or_else(|| EngineError::UnknownSnapshot { tag: tag.clone() })?;
        let mut next = row.clone();
        change(&mut next);
        debug_assert!(row.status == next.status || row.status.can_become(next.status));
        registry.put_snapshot(&next)?;
        *row = next.clone();
        drop(rows);
        self.changed.notify_waiters();
        Ok(next)
    }

    /// Shows the figures of a snapshot that is still being written. Not kept: the row that says
    /// `ready` will have them.
    pub(crate) fn show_figures(&self, tag: &SnapshotTag, figures: SnapshotFigures) {
        if let Some(row) = self.lock().get_mut(tag) {
            row.figures = Some(figures);
        }
    }

    /// Marks a snapshot as unusable, here even where the registry cannot be written (the disk may
    /// be full): its row says `writing` then, which the next daemon takes for a failure.
    pub(crate) fn fail(&self, registry: &Registry, tag: &SnapshotTag, reason: &str) {
        let mark = |row: &mut SnapshotRow| {
            row.status = SnapshotStatus::Failed;
            row.error = Some(reason.to_owned());
        };
        if let Err(error) = self.update(registry, tag, mark) {
            tracing::warn!(snapshot = %tag, %error, "the registry cannot note a failure");
            if let Some(row) = self.lock().get_mut(tag) {
                mark(row);
            }
            self.changed.notify_waiters();
        }
    }

    /// Removes a snapshot. Those that were made over it are from now on over what is below it.
    pub(crate) fn remove(&self, registry: &Registry, tag: &SnapshotTag) -> Result<(), StoreError> {
        let mut rows = self.lock();
        let below = rows.get(tag).and_then(|row| row.manifest.parent_tag.clone());
        let above = rows.values().filter(|row| row.manifest.parent_tag.as_ref() == Some(tag));
        let mut above: Vec<SnapshotRow> = above.cloned().collect();
        for row in &mut above {
            row.manifest.parent_tag.clone_from(&below);
        }
        registry.remove_snapshot(tag, &above)?;
        rows.remove(tag);
        rows.extend(above.into_iter().map(|row| (row.tag.clone(), row)));
        drop(rows);
        self.changed.notify_waiters();
        Ok(())
    }

    pub(crate) fn get(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        let row = self.lock().get(tag).cloned();
        row.ok_or_else(|| EngineError::UnknownSnapshot { tag: tag.clone() })
    }

    /// The row of a snapshot that sandboxes may start from.
    pub(crate) fn ready(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        let row = self.get(tag)?;
        if row.status == SnapshotStatus::Ready {
            return Ok(row);
        }
        Err(EngineError::SnapshotNotReady { tag: row.tag, status: row.status, reason: row.error })
    }

    /// Waits until a snapshot is no longer being written.
    pub(crate) async fn settled(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let row = self.get(tag)?;
            if row.status != SnapshotStatus::Writing {
                return self.ready(tag);
            }
            changed.await;
        }
    }

    /// All rows, oldest first.
    pub(crate) fn list(&self) -> Vec<SnapshotRow> {
        let mut rows: Vec<SnapshotRow> = self.lock().values().cloned().collect();
        rows.sort_by(|a, b| (a.created_at, &a.tag).cmp(&(b.created_at, &b.tag)));
        rows
    }
}

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
