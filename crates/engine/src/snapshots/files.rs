//! Which files are needed, and the removal of those that are not.
//!
//! A layer or overlay is needed by every snapshot that lists it, by every sandbox that has claimed
//! it, and by work that holds it. What nobody needs any more is removed as soon as the last one
//! lets go.
//!
//! Guarantees: no file that is listed, claimed or held is removed or evicted from the hot
//! directory; a claim ends only when it is dropped in words, so that sandboxes which outlive their
//! daemon keep their files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use forkd_store::{FileSet, SnapshotManifest, SnapshotRow, StoreError, StoreFiles};
use forkd_types::{ByteCount, LayerId, SandboxId};

use super::catalog::Catalog;

/// The files of snapshots and sandboxes.
#[derive(Debug)]
pub(crate) struct Files {
    store: StoreFiles,
    catalog: Arc<Catalog>,
    /// How much the hot copies of layers may take together, as far as they can be spared.
    hot_budget: Option<ByteCount>,
    needs: Mutex<Needs>,
    /// Ends what claims files and could do without.
    spare: OnceLock<Spare>,
}

struct Spare(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Spare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spare")
    }
}

#[derive(Debug, Default)]
struct Needs {
    of_sandboxes: BTreeMap<SandboxId, FileSet>,
    of_work: BTreeMap<u64, FileSet>,
    holds_made: u64,
}

impl Deref for Files {
    type Target = StoreFiles;

    fn deref(&self) -> &StoreFiles {
        &self.store
    }
}

/// What work reads: it stays until this is dropped, whatever is removed meanwhile.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    files: &'a Files,
    number: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let held = self.files.needs().of_work.remove(&self.number);
        self.files.collect(&held.unwrap_or_default());
    }
}

impl Files {
    pub(crate) fn new(
        store: StoreFiles,
        catalog: Arc<Catalog>,
        hot_budget: Option<ByteCount>,
    ) -> Self {
        Self { store, catalog, hot_budget, needs: Mutex::default(), spare: OnceLock::new() }
    }

    /// From now on `spare` is called where there is no space: it ends what claims files and could
    /// do without, and returns when it has.
    pub(crate) fn spare_by(&self, spare: impl Fn() + Send + Sync + 'static) {
        // There is one.
        self.spare.set(Spare(Box::new(spare))).ok();
    }

    fn needs(&self) -> MutexGuard<'_, Needs> {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the files of a snapshot.
    pub(crate) fn hold(&self, manifest: &SnapshotManifest) -> Hold<'_> {
        let mut needs = self.needs();
        let number = needs.holds_made;
        needs.holds_made += 1;
        needs.of_work.insert(number, FileSet::from(manifest));
        Hold { files: self, number }
    }

    /// From now on a sandbox needs exactly these files.
    pub(crate) fn claim(&self, id: &SandboxId, files: FileSet) {
        let before = self.needs().of_sandboxes.insert(id.clone(), files.clone());
        self.collect(&before.unwrap_or_default().minus(&files));
    }

    /// A sandbox needs these files too.
    pub(crate) fn claim_also(&self, id: &SandboxId, files: FileSet) {
        let mut needs = self.needs();
        let claimed = needs.of_sandboxes.entry(id.clone()).or_default();
        *claimed = std::mem::take(claimed).union(files);
    }

    /// A sandbox is gone and needs nothing any more.
    pub(crate) fn drop_claim(&self, id: &SandboxId) {
        let before = self.needs().of_sandboxes.remove(id);
        self.collect(&before.unwrap_or_default());
    }

    /// A sandbox of an earlier daemon is lost. Nothing is removed: not all others have claimed
    /// their files yet, and a sweep follows when they have.
    pub(crate) fn abandon_claim(&self, id: &SandboxId) {
        self.needs().of_sandboxes.remove(id);
    }

    /// The files that a sandbox needs.
    pub(crate) fn claimed_by(&self, id: &SandboxId) -> FileSet {
        self.needs().of_sandboxes.get(id).cloned().unwrap_or_default()
    }

    /// The files that sandboxes run over or build their next branch on. Some are in no snapshot:
    /// those that were merged for the next branch.
    pub(crate) fn claimed(&self) -> FileSet {
        self.needs().of_sandboxes.values().cloned().collect()
    }

    /// All files that snapshots, sandboxes and work need.
    pub(crate) fn needed(&self) -> FileSet {
        let listed: FileSet =
            self.catalog.list().iter().map(|row| FileSet::from(&row.manifest)).collect();
        let held: FileSet = self.needs().of_work.values().cloned().collect();
        listed.union(self.claimed()).union(held)
    }

    /// Removes those of `candidates` that nobody needs.
    pub(crate) fn collect(&self, candidates: &FileSet) {
        if candidates.is_empty() {
            return;
        }
        self.store.remove_files(&candidates.minus(&self.needed()));
        // A layer that stays as another's ancestor is no snapshot's top any more.
        for id in &candidates.layers - &self.tops() {
            self.store.remove_view(&id);
        }
    }

    /// The top layers of all snapshots: what mapping views go by.
    pub(crate) fn tops(&self) -> BTreeSet<LayerId> {
        self.catalog.list().into_iter().filter_map(|mut row| row.manifest.layers.pop()).collect()
    }

    /// Does `work`; where it finds no space in the hot directory, copies that can be spared are
    /// evicted and it is done again.
    pub(crate) fn with_room<T>(
        &self,
        work: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = work();
        let Err(StoreError::NoSpace { directory, needed, free }) = &result else { return result };
        if directory != self.store.hot() {
            return result;
        }
        if let Some(Spare(spare)) = self.spare.get() {
            spare();
        }
        let lacking = ByteCount::new(needed.get().saturating_sub(free.get()));
        let budget = ByteCount::new(self.hot_bytes().get().saturating_sub(lacking.get()));
        match self.store.evict(budget, &|id| self.must_stay_hot(id)) {
            ByteCount::ZERO => result,
            _ => work(),
        }
    }

    /// Bytes of all hot copies.
    fn hot_bytes(&self) -> ByteCount {
        self.store.hot_layers().iter().map(|layer| layer.bytes).sum()
    }

    /// Whether there is a budget for hot copies.
    pub(crate) const fn has_budget(&self) -> bool {
        self.hot_budget.is_some()
    }

    /// Whether another hot copy would be beyond the budget.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.hot_budget.is_some_and(|budget| self.hot_bytes() >= budget)
    }

    /// Evicts hot copies beyond the budget, if there is one.
    pub(crate) fn keep_budget(&self) {
        if let Some(budget) = self.hot_budget {
            self.store.evict(budget, &|id| self.must_stay_hot(id));
        }
    }

    /// Whether a sandbox maps this layer, or its next branch builds on it, or it belongs to a
    /// snapshot that is not durable: the layer may be so already, other parts may not.
    fn must_stay_hot(&self, id: &LayerId) -> bool {
        let lists = |row: SnapshotRow| !row.durable && row.manifest.layers.contains(id);
        self.needs().of_sandboxes.values().any(|files| files.layers.contains(id))
            || self.catalog.list().into_iter().any(lists)
    }
}
