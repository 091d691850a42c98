//! Snapshots in memory and in the registry, kept the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use forkd_store::{Registry, SnapshotFigures, SnapshotManifest, SnapshotRow, StoreError};
use forkd_types::{
    BranchPhase, LifeCycle as _, OperationId, PhaseTimes, SnapshotStatus, SnapshotTag,
};
use tokio::sync::Notify;

use crate::events::{Change, EventLog, SnapshotChange};
use crate::{BranchReport, EngineError, Snapshot};

/// All snapshots. Every change goes to the registry first.
pub(crate) struct Catalog {
    rows: Mutex<Rows>,
    changed: Notify,
    /// Where durable files are.
    directory: PathBuf,
    events: Arc<EventLog>,
}

#[derive(Default)]
struct Rows {
    all: BTreeMap<SnapshotTag, SnapshotRow>,
    /// The operations that make those that are being written.
    makers: BTreeMap<SnapshotTag, OperationId>,
}

impl Catalog {
    pub(crate) fn new(rows: Vec<SnapshotRow>, directory: PathBuf, events: Arc<EventLog>) -> Self {
        let all = rows.into_iter().map(|row| (row.tag.clone(), row)).collect();
        let rows = Mutex::new(Rows { all, makers: BTreeMap::new() });
        Self { rows, changed: Notify::new(), directory, events }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What others get to see of `row`.
    fn show(&self, rows: &Rows, row: SnapshotRow) -> Snapshot {
        let branch = row.figures.as_ref().map(from_figures);
        Snapshot {
            directory: self.directory.clone(),
            operation: rows.makers.get(&row.tag).cloned(),
            created_at: row.created_at,
            branched_from: row.manifest.branched_from,
            parent_tag: row.manifest.parent_tag,
            status: row.status,
            durable: row.durable,
            image: row.manifest.image,
            memory: row.manifest.memory,
            vcpus: row.manifest.vcpus,
            memory_layer: branch.as_ref().map_or(row.manifest.memory, |report| report.stored),
            branch,
            error: row.error,
            chain_depth: row.manifest.layers.len(),
            tag: row.tag,
        }
    }

    /// Tells what happened while the rows are locked, so that events have the order of the changes.
    fn tell(&self, rows: &Rows, change: SnapshotChange, row: &SnapshotRow) {
        let snapshot = self.show(rows, row.clone());
        self.events.push(Change::Snapshot(change, Box::new(snapshot)));
    }

    /// A row has another content.
    fn tell_difference(&self, rows: &mut Rows, before: &SnapshotRow, after: &SnapshotRow) {
        let change = match after.status {
            status if status == before.status => None,
            SnapshotStatus::Writing => Some(SnapshotChange::Writing),
            SnapshotStatus::Ready => Some(SnapshotChange::Ready),
            SnapshotStatus::Failed => Some(SnapshotChange::Failed),
        };
        if after.status != SnapshotStatus::Writing {
            rows.makers.remove(&after.tag);
        }
        if let Some(change) = change {
            self.tell(rows, change, after);
        }
        if after.durable && !before.durable {
            self.tell(rows, SnapshotChange::Durable, after);
        }
    }

    /// Takes a tag for a snapshot that the operation `maker` is going to write. The tag of a failed
    /// one is free.
    pub(crate) fn reserve(
        &self,
        registry: &Registry,
        tag: &SnapshotTag,
        manifest: SnapshotManifest,
        maker: &OperationId,
    ) -> Result<(), EngineError> {
        let mut rows = self.lock();
        if let Some(row) = rows.all.get(tag).filter(|row| row.status != SnapshotStatus::Failed) {
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
        rows.makers.insert(tag.clone(), maker.clone());
        self.tell(&rows, SnapshotChange::Writing, &row);
        rows.all.insert(tag.clone(), row);
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
        let unknown = || EngineError::UnknownSnapshot { tag: tag.clone() };
        let row = rows.all.get(tag).ok_or_else(unknown)?.clone();
        let mut next = row.clone();
        change(&mut next);
        debug_assert!(row.status == next.status || row.status.can_become(next.status));
        registry.put_snapshot(&next)?;
        rows.all.insert(tag.clone(), next.clone());
        self.tell_difference(&mut rows, &row, &next);
        drop(rows);
        self.changed.notify_waiters();
        Ok(next)
    }

    /// Shows the figures of a snapshot that is still being written. Not kept: the row that says
    /// `ready` will have them.
    pub(crate) fn show_figures(&self, tag: &SnapshotTag, figures: SnapshotFigures) {
        if let Some(row) = self.lock().all.get_mut(tag) {
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
            let mut rows = self.lock();
            if let Some(before) = rows.all.get(tag).cloned() {
                let mut after = before.clone();
                mark(&mut after);
                rows.all.insert(tag.clone(), after.clone());
                self.tell_difference(&mut rows, &before, &after);
            }
            drop(rows);
            self.changed.notify_waiters();
        }
    }

    /// Removes a snapshot. Those that were made over it are from now on over what is below it.
    pub(crate) fn remove(&self, registry: &Registry, tag: &SnapshotTag) -> Result<(), StoreError> {
        let mut rows = self.lock();
        let below = rows.all.get(tag).and_then(|row| row.manifest.parent_tag.clone());
        let above = rows.all.values().filter(|row| row.manifest.parent_tag.as_ref() == Some(tag));
        let mut above: Vec<SnapshotRow> = above.cloned().collect();
        for row in &mut above {
            row.manifest.parent_tag.clone_from(&below);
        }
        registry.remove_snapshot(tag, &above)?;
        let removed = rows.all.remove(tag);
        rows.makers.remove(tag);
        rows.all.extend(above.into_iter().map(|row| (row.tag.clone(), row)));
        if let Some(row) = removed {
            self.tell(&rows, SnapshotChange::Removed, &row);
        }
        drop(rows);
        self.changed.notify_waiters();
        Ok(())
    }

    pub(crate) fn get(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
        let row = self.lock().all.get(tag).cloned();
        row.ok_or_else(|| EngineError::UnknownSnapshot { tag: tag.clone() })
    }

    /// What others get to see of a snapshot.
    pub(crate) fn view(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        let rows = self.lock();
        let row = rows.all.get(tag).cloned();
        let row = row.ok_or_else(|| EngineError::UnknownSnapshot { tag: tag.clone() })?;
        Ok(self.show(&rows, row))
    }

    /// What others get to see of all snapshots, oldest first.
    pub(crate) fn view_all(&self) -> Vec<Snapshot> {
        let rows = self.lock();
        let show = |row: &SnapshotRow| self.show(&rows, row.clone());
        let mut all: Vec<Snapshot> = rows.all.values().map(show).collect();
        drop(rows);
        all.sort_by(|a, b| (a.created_at, &a.tag).cmp(&(b.created_at, &b.tag)));
        all
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
        let mut rows: Vec<SnapshotRow> = self.lock().all.values().cloned().collect();
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
