//! Snapshots in memory and in the registry, kept the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use forkd_store::{
    InheritedLimits, Registry, SnapshotFigures, SnapshotManifest, SnapshotRow, StoreError,
};
use forkd_types::{LifeCycle as _, OperationId, SnapshotStatus, SnapshotTag};
use forkd_vmm::qemu;
use tokio::sync::Notify;

use super::figures::from_figures;
use crate::events::{Change, EventLog, SnapshotChange};
use crate::{EngineError, Snapshot};

/// What a snapshot gives on to what is started from it.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) limits: InheritedLimits,
    /// See [`crate::network::InheritedNetwork`]. A branch knows it at its end.
    pub(crate) network: Option<String>,
}

/// All snapshots. Every change goes to the registry first.
#[derive(Debug)]
pub(crate) struct Catalog {
    registry: Arc<Registry>,
    rows: Mutex<Rows>,
    changed: Notify,
    /// One was removed, or has failed.
    lost: Notify,
    /// Where durable files are.
    directory: PathBuf,
    events: Arc<EventLog>,
}

#[derive(Debug, Default)]
struct Rows {
    all: BTreeMap<SnapshotTag, SnapshotRow>,
    /// The operations that make those that are being written.
    makers: BTreeMap<SnapshotTag, OperationId>,
}

impl Rows {
    /// Those that were made over `tag`.
    fn over(&self, tag: &SnapshotTag) -> impl Iterator<Item = &SnapshotRow> {
        self.all.values().filter(move |row| row.manifest.parent_tag.as_ref() == Some(tag))
    }
}

impl Catalog {
    /// The catalog of `rows`, which the registry has. Durable files are in `directory`.
    pub(crate) fn new(
        registry: Arc<Registry>,
        rows: Vec<SnapshotRow>,
        directory: PathBuf,
        events: Arc<EventLog>,
    ) -> Self {
        let all = rows.into_iter().map(|row| (row.tag.clone(), row)).collect();
        let rows = Mutex::new(Rows { all, makers: BTreeMap::new() });
        Self { registry, rows, changed: Notify::new(), lost: Notify::new(), directory, events }
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
            private: row.manifest.private,
            cpu: qemu::cpu_model_of(&row.manifest.machine.cpu_model),
            memory_layer: branch.as_ref().map_or(row.manifest.memory, |report| report.stored),
            branch,
            error: row.error,
            chain_depth: row.manifest.layers.len(),
            shared: row.shared,
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
            if after.status == SnapshotStatus::Failed {
                self.lost.notify_one();
            }
        }
        if after.durable && !before.durable {
            self.tell(rows, SnapshotChange::Durable, after);
        }
    }

    /// Waits until a snapshot is removed or fails, unless one was since this was last waited for.
    pub(crate) async fn lost(&self) {
        self.lost.notified().await;
    }

    /// The snapshots that were made over `tag`.
    pub(crate) fn over(&self, tag: &SnapshotTag) -> Vec<SnapshotTag> {
        self.lock().over(tag).map(|row| row.tag.clone()).collect()
    }

    /// Takes a tag for a snapshot that the operation `maker` is going to write. The tag of a failed
    /// one is free.
    pub(crate) fn reserve(
        &self,
        tag: &SnapshotTag,
        manifest: SnapshotManifest,
        inherited: Inherited,
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
            shared: false,
            limits: inherited.limits,
            network: inherited.network,
        };
        self.registry.put_snapshot(&row)?;
        rows.makers.insert(tag.clone(), maker.clone());
        self.tell(&rows, SnapshotChange::Writing, &row);
        rows.all.insert(tag.clone(), row);
        Ok(())
    }

    /// Changes what a row says, in the registry and then here. Its status stays.
    pub(crate) fn update(
        &self,
        tag: &SnapshotTag,
        change: impl FnOnce(&mut SnapshotRow),
    ) -> Result<SnapshotRow, EngineError> {
        self.write(tag, None, change)
    }

    /// Brings a snapshot to another status, with what else changes then: in the registry and then
    /// here. The only way to write a status.
    ///
    /// # Errors
    /// When the table of hops does not have this one: nothing is changed then.
    pub(crate) fn enter(
        &self,
        tag: &SnapshotTag,
        status: SnapshotStatus,
        change: impl FnOnce(&mut SnapshotRow),
    ) -> Result<SnapshotRow, EngineError> {
        self.write(tag, Some(status), change)
    }

    fn write(
        &self,
        tag: &SnapshotTag,
        status: Option<SnapshotStatus>,
        change: impl FnOnce(&mut SnapshotRow),
    ) -> Result<SnapshotRow, EngineError> {
        let mut rows = self.lock();
        let unknown = || EngineError::UnknownSnapshot { tag: tag.clone() };
        let row = rows.all.get(tag).ok_or_else(unknown)?.clone();
        let next = changed(&row, status, change)?;
        self.registry.put_snapshot(&next)?;
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
    /// be full): its row says `writing` then, which the next daemon takes for a failure. Does
    /// nothing to one that has failed already, or is gone.
    pub(crate) fn fail(&self, tag: &SnapshotTag, reason: &str) {
        let failed = SnapshotStatus::Failed;
        let mark = |row: &mut SnapshotRow| row.error = Some(reason.to_owned());
        if !self.get(tag).is_ok_and(|row| row.status.can_become(failed)) {
            return;
        }
        let Err(error) = self.enter(tag, failed, mark) else { return };
        tracing::warn!(snapshot = %tag, %error, "the registry cannot note a failure");
        let mut rows = self.lock();
        if let Some(before) = rows.all.get(tag).cloned()
            && let Ok(after) = changed(&before, Some(failed), mark)
        {
            rows.all.insert(tag.clone(), after.clone());
            self.tell_difference(&mut rows, &before, &after);
        }
        drop(rows);
        self.changed.notify_waiters();
    }

    /// Does `begin` while the snapshot of `row` is there and ready, so that nobody removes it
    /// without regard to what that notes: see [`Self::remove_if`].
    pub(crate) fn while_ready<T>(
        &self,
        row: &SnapshotRow,
        begin: impl FnOnce() -> T,
    ) -> Result<T, EngineError> {
        let rows = self.lock();
        match rows.all.get(&row.tag) {
            // One that was made later is another of the same name.
            Some(found) if found.created_at != row.created_at => {}
            Some(found) if found.status == SnapshotStatus::Ready => return Ok(begin()),
            Some(found) => return Err(not_ready(found.clone())),
            None => {}
        }
        Err(EngineError::UnknownSnapshot { tag: row.tag.clone() })
    }

    /// Removes a snapshot. Those that were made over it are from now on over what is below it.
    pub(crate) fn remove(&self, tag: &SnapshotTag) -> Result<(), StoreError> {
        self.remove_from(&mut self.lock(), tag)
    }

    /// Removes a snapshot if `may_go` says so of it and of those that were made over it. Nothing
    /// starts from it meanwhile, and none is made over it. Tells whether it is gone.
    pub(crate) fn remove_if(
        &self,
        tag: &SnapshotTag,
        may_go: impl FnOnce(&SnapshotRow, Vec<SnapshotTag>) -> bool,
    ) -> Result<bool, StoreError> {
        let mut rows = self.lock();
        let over = rows.over(tag).map(|row| row.tag.clone()).collect();
        if rows.all.get(tag).is_some_and(|row| !may_go(row, over)) {
            return Ok(false);
        }
        self.remove_from(&mut rows, tag).map(|()| true)
    }

    fn remove_from(&self, rows: &mut Rows, tag: &SnapshotTag) -> Result<(), StoreError> {
        let below = rows.all.get(tag).and_then(|row| row.manifest.parent_tag.clone());
        let mut above: Vec<SnapshotRow> = rows.over(tag).cloned().collect();
        for row in &mut above {
            row.manifest.parent_tag.clone_from(&below);
        }
        self.registry.remove_snapshot(tag, &above)?;
        let removed = rows.all.remove(tag);
        rows.makers.remove(tag);
        rows.all.extend(above.into_iter().map(|row| (row.tag.clone(), row)));
        if let Some(row) = removed {
            self.tell(rows, SnapshotChange::Removed, &row);
        }
        self.changed.notify_waiters();
        self.lost.notify_one();
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
        Err(not_ready(row))
    }

    /// Waits until a snapshot is no longer being written.
    pub(crate) async fn written(&self, tag: &SnapshotTag) -> Result<SnapshotRow, EngineError> {
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

fn not_ready(row: SnapshotRow) -> EngineError {
    EngineError::SnapshotNotReady { tag: row.tag, status: row.status, reason: row.error }
}

/// A row after `change`, in the given status or in the one that it had.
fn changed(
    row: &SnapshotRow,
    status: Option<SnapshotStatus>,
    change: impl FnOnce(&mut SnapshotRow),
) -> Result<SnapshotRow, EngineError> {
    let mut next = row.clone();
    change(&mut next);
    next.status = status.unwrap_or(row.status);
    if next.status == row.status || row.status.can_become(next.status) {
        return Ok(next);
    }
    let (tag, from, to) = (&row.tag, row.status, next.status);
    Err(EngineError::Internal(format!("snapshot {tag} is {from} and cannot become {to}")))
}
