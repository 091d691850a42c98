//! Hot copies of layers: room is made for new ones, a budget is kept, and after a start they are
//! checked or made anew in the background.
//!
//! Only copies are evicted that no sandbox maps or builds on, whose snapshots are durable and whose
//! durable copy is good; an evicted one is made anew when it is used.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_store::{SnapshotRow, StoreError};
use forkd_types::{ByteCount, LayerId, OperationId, SnapshotStatus, SnapshotTag, limit};

use crate::EngineError;
use crate::branch;
use crate::engine::Inner;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::{blocking, damaged_part};

/// Between two words about progress, in the log and to readers of events.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

impl Inner {
    /// Does `work`; where it finds no space in the hot directory, copies that can be spared are
    /// evicted and it is done again.
    pub(crate) fn with_room<T>(
        &self,
        work: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = work();
        let Err(StoreError::NoSpace { directory, needed, free }) = &result else { return result };
        if directory != self.files.hot() {
            return result;
        }
        let lacking = ByteCount::new(needed.get().saturating_sub(free.get()));
        let used: ByteCount = self.files.hot_layers().iter().map(|layer| layer.bytes).sum();
        let budget = ByteCount::new(used.get().saturating_sub(lacking.get()));
        match self.files.evict(budget, &|id| self.is_held(id)) {
            ByteCount::ZERO => result,
            _ => work(),
        }
    }

    /// Evicts hot copies beyond the budget, if there is one.
    pub(crate) fn keep_budget(&self) {
        if let Some(budget) = self.config.hot_budget {
            self.files.evict(budget, &|id| self.is_held(id));
        }
    }

    /// Whether a sandbox maps this layer, or its next branch builds on it, or it belongs to a
    /// snapshot that is not durable: the layer may be so already, other parts may not.
    fn is_held(&self, id: &LayerId) -> bool {
        let lists = |row: SnapshotRow| !row.durable && row.manifest.layers.contains(id);
        self.sandboxes().iter().any(|handle| handle.layers().contains(id))
            || self.catalog.list().into_iter().any(lists)
    }

    /// Marks a snapshot of which a part is missing or damaged as failed: no good copy is left.
    pub(crate) fn note_damage(&self, tag: &SnapshotTag, error: &EngineError) {
        let EngineError::SnapshotDamaged { what, layer, state, .. } = error else { return };
        // The image is no part of the snapshot: it comes back with the right one.
        if *what == crate::sandbox::IMAGE || self.catalog.ready(tag).is_err() {
            return;
        }
        let reason = format!("{what} `{layer}` is {state}");
        tracing::error!(snapshot = %tag, %reason, "a snapshot is damaged");
        self.catalog.fail(&self.registry, tag, &reason);
    }
}

/// Keeps the budget, in the background.
pub(crate) fn keep_budget_in_background(inner: &Arc<Inner>) {
    if inner.config.hot_budget.is_none() {
        return;
    }
    let worker = Arc::clone(inner);
    inner.tasks.spawn_on(
        async move {
            let kept = blocking(move || worker.keep_budget()).await;
            if let Err(error) = kept {
                tracing::error!(%error, "keeping the budget of the hot directory died");
            }
        },
        &inner.runtime,
    );
}

/// After a start: publishes what is ready and not durable; makes the hot copies that are missing,
/// several at once; compares hot copies, overlays and then durable copies with their checksums.
/// Whoever needs one of them meanwhile does not wait for the others.
pub(crate) fn settle_in_background(inner: &Arc<Inner>) {
    let mut rows = inner.catalog.list();
    rows.retain(|row| row.status == SnapshotStatus::Ready);
    // The newest first: it is the likeliest to be used.
    rows.reverse();
    if rows.is_empty() {
        inner.checked.cancel();
        return;
    }
    for row in rows.iter().filter(|row| !row.durable) {
        branch::publish_in_background(inner, &row.tag);
    }
    let (worker, checked) = (Arc::clone(inner), inner.checked.clone());
    let id = OperationId::random();
    let operation = inner.operations.start(id, OperationKind::Restore, Subject::default());
    inner.tasks.spawn_on(
        async move {
            let settled = blocking(move || {
                let result = settle(&worker, &rows, &operation);
                operation.end(&result);
            });
            if let Err(error) = settled.await {
                tracing::error!(%error, "checking the snapshots died");
            }
            checked.cancel();
        },
        &inner.runtime,
    );
}

/// Ends early, without harm, when it is cancelled or the daemon ends: what was not done is done
/// when somebody needs it.
fn settle(inner: &Inner, rows: &[SnapshotRow], operation: &Running) -> Result<(), EngineError> {
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
            note(inner, row, &error);
        }
    };
    operation.step("make hot copies");
    make_hot(inner, &layers, &damaged, operation);
    operation.step("check disks");
    for row in rows {
        for id in &row.manifest.overlays {
            may_go_on(inner, operation)?;
            if let Err(error) =
                inner.files.require_overlay(id, row.manifest.overlay_checksums.get(id))
            {
                note(inner, row, &error);
            }
        }
    }
    // Last, because nobody waits for it, and the disk may be slow.
    operation.step("check durable copies");
    let durable = |id: &&&LayerId| listed[**id].iter().any(|row| row.durable);
    for id in layers.iter().filter(durable) {
        may_go_on(inner, operation)?;
        if let Err(error) = inner.files.check_durable(id) {
            let is_hot = inner.files.hot_pages(id).exists();
            tracing::warn!(layer = %id, %error, is_hot, "a durable copy cannot be made good");
        }
    }
    for row in rows.iter().filter(|row| row.durable) {
        let (top, sum) = (row.manifest.layers.last(), &row.manifest.device_state);
        let Some((top, sum)) = top.zip(sum.as_ref()) else { continue };
        if let Err(error) = inner.files.publish_device_state(top, sum) {
            note(inner, row, &error);
        }
    }
    may_go_on(inner, operation)
}

fn may_go_on(inner: &Inner, operation: &Running) -> Result<(), EngineError> {
    if inner.ending.is_cancelled() {
        return Err(EngineError::Cancelled { id: operation.id().clone() });
    }
    operation.check()
}

/// Opens each layer once, which makes its hot copy or checks it.
fn make_hot(
    inner: &Inner,
    layers: &[&LayerId],
    damaged: &(dyn Fn(&LayerId, StoreError) + Sync),
    operation: &Running,
) {
    let begun = Instant::now();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let told = Mutex::new(begun);
    let work = || {
        while let Some(id) = layers.get(next.fetch_add(1, Ordering::Relaxed)) {
            if may_go_on(inner, operation).is_err() || !make_one_hot(inner, id, damaged) {
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
    inner: &Inner,
    id: &LayerId,
    damaged: &(dyn Fn(&LayerId, StoreError) + Sync),
) -> bool {
    if !inner.files.hot_pages(id).exists()
        && let Some(budget) = inner.config.hot_budget
    {
        let used: ByteCount = inner.files.hot_layers().iter().map(|layer| layer.bytes).sum();
        if used >= budget {
            tracing::info!("no more hot copies are made: they would be beyond the budget");
            return false;
        }
    }
    match inner.files.open_layer(id) {
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
fn note(inner: &Inner, row: &SnapshotRow, error: &StoreError) {
    let same = |now: SnapshotRow| now.created_at == row.created_at;
    if inner.catalog.get(&row.tag).is_ok_and(same)
        && let Some(damaged) = damaged_part(row, error)
    {
        inner.note_damage(&row.tag, &damaged);
    }
}
