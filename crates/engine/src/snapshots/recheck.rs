//! After a start: hot copies of layers are checked or made anew in the background, overlays and
//! durable copies are compared with their checksums.
//!
//! Whoever needs a part meanwhile does not wait for the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_store::{SnapshotRow, StoreError};
use forkd_types::{LayerId, OperationId, SnapshotStatus, limit};

use super::Snapshots;
use super::parts::damaged_part;
use crate::EngineError;
use crate::background::blocking;
use crate::operation::{OperationKind, Running, Subject};

/// Between two words about progress, in the log and to readers of events.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

impl Snapshots {
    /// After a start: publishes what is ready and not durable; makes the hot copies that are
    /// missing, several at once; compares hot copies, overlays and then durable copies with their
    /// checksums. Whoever needs one of them meanwhile does not wait for the others.
    pub(crate) fn recheck_in_background(self: &Arc<Self>) {
        let mut rows = self.catalog.list();
        rows.retain(|row| row.status == SnapshotStatus::Ready);
        // The newest first: it is the likeliest to be used.
        rows.reverse();
        if rows.is_empty() {
            self.checked.cancel();
            return;
        }
        for row in rows.iter().filter(|row| !row.durable) {
            self.publish_in_background(&row.tag);
        }
        let (snapshots, checked) = (Arc::clone(self), self.checked.clone());
        let id = OperationId::random();
        let operation = self.operations.start(id, OperationKind::Restore, Subject::default());
        self.background.spawn(async move {
            let rechecked = blocking(move || {
                let result = recheck(&snapshots, &rows, &operation);
                operation.finish(&result);
            });
            if let Err(error) = rechecked.await {
                tracing::error!(%error, "checking the snapshots died");
            }
            checked.cancel();
        });
    }
}

/// Ends early, without harm, when it is cancelled or the daemon ends: what was not done is done
/// when somebody needs it.
fn recheck(
    snapshots: &Snapshots,
    rows: &[SnapshotRow],
    operation: &Running,
) -> Result<(), EngineError> {
    let mut layers: Vec<&LayerId> = Vec::new();
    let mut listed: BTreeMap<&LayerId, Vec<&SnapshotRow>> = BTreeMap::new();
    for row in rows {
        for id in &row.manifest.layers {
            let by = listed.entry(id).or_default();
            if by.is_empty() {
                layers.push(id);
            }
            by.push(row);
        }
    }
    let damaged = |id: &LayerId, error: StoreError| {
        let error = Arc::new(error);
        for row in &listed[id] {
            note(snapshots, row, &error);
        }
    };
    operation.step("make hot copies");
    make_hot(snapshots, &layers, &damaged, operation);
    operation.step("check disks");
    for row in rows {
        for id in &row.manifest.overlays {
            may_go_on(snapshots, operation)?;
            if let Err(error) =
                snapshots.files.require_overlay(id, row.manifest.overlay_checksums.get(id))
            {
                note(snapshots, row, &error);
            }
        }
    }
    // Last, because nobody waits for it, and the disk may be slow.
    operation.step("check durable copies");
    let durable = |id: &&&LayerId| listed[**id].iter().any(|row| row.durable);
    for id in layers.iter().filter(durable) {
        may_go_on(snapshots, operation)?;
        if let Err(error) = snapshots.files.check_durable(id) {
            let is_hot = snapshots.files.hot_pages(id).exists();
            tracing::warn!(layer = %id, %error, is_hot, "a durable copy cannot be made good");
        }
    }
    for row in rows.iter().filter(|row| row.durable) {
        let (top, sum) = (row.manifest.layers.last(), &row.manifest.device_state);
        let Some((top, sum)) = top.zip(sum.as_ref()) else { continue };
        if let Err(error) = snapshots.files.publish_device_state(top, sum) {
            note(snapshots, row, &error);
        }
    }
    may_go_on(snapshots, operation)
}

fn may_go_on(snapshots: &Snapshots, operation: &Running) -> Result<(), EngineError> {
    if snapshots.background.is_ending() {
        return Err(EngineError::Cancelled { id: operation.id().clone() });
    }
    operation.check()
}

/// Opens each layer once, which makes its hot copy or checks it.
fn make_hot(
    snapshots: &Snapshots,
    layers: &[&LayerId],
    damaged: &(dyn Fn(&LayerId, StoreError) + Sync),
    operation: &Running,
) {
    let begun = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let told = Mutex::new(begun);
    let work = || {
        while let Some(id) = layers.get(next.fetch_add(1, Ordering::Relaxed)) {
            if may_go_on(snapshots, operation).is_err() || !make_one_hot(snapshots, id, damaged) {
                return;
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.elapsed() > PROGRESS_INTERVAL {
                *told = Instant::now();
                operation.progress(done as u64, layers.len() as u64);
                tracing::info!(done, of = layers.len(), "hot copies are checked or made anew");
            }
        }
    };
    std::thread::scope(|scope| {
        (0..limit::LAYERS_MADE_HOT_AT_ONCE).for_each(|_| drop(scope.spawn(work)));
    });
    let (done, of) = (done.into_inner(), layers.len());
    let took = begun.elapsed();
    tracing::info!(done, of, ?took, "hot copies have been checked or made anew");
}

/// Whether to go on.
fn make_one_hot(
    snapshots: &Snapshots,
    id: &LayerId,
    damaged: &(dyn Fn(&LayerId, StoreError) + Sync),
) -> bool {
    if !snapshots.files.hot_pages(id).exists() && snapshots.files.is_over_budget() {
        tracing::info!("no more hot copies are made: they would be beyond the budget");
        return false;
    }
    match snapshots.files.open_layer(id) {
        Ok(_) => true,
        Err(error) if error.is_damage() => {
            damaged(id, error);
            true
        }
        Err(error) => {
            tracing::warn!(layer = %id, %error, "no more hot copies are made");
            false
        }
    }
}

/// A snapshot may have been removed meanwhile, and its files with it.
fn note(snapshots: &Snapshots, row: &SnapshotRow, error: &StoreError) {
    let same = |now: SnapshotRow| now.created_at == row.created_at;
    if snapshots.catalog.get(&row.tag).is_ok_and(same)
        && let Some(damaged) = damaged_part(row, error)
    {
        snapshots.note_damage(&row.tag, &damaged);
    }
}
