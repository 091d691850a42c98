//! Removal of what nothing reaches any more. A layer or overlay is reachable from every snapshot
//! that lists it, from every sandbox that runs over it, and from work that reads it; what is
//! reachable from none is removed.

use std::collections::BTreeSet;

use forkd_store::{FileSet, SnapshotManifest};
use forkd_types::{LayerId, OperationId, SnapshotStatus, SnapshotTag};

use crate::EngineError;
use crate::engine::Inner;

/// What work in the background reads: it stays until this is dropped, whatever is removed
/// meanwhile.
pub(crate) struct Hold<'a> {
    inner: &'a Inner,
    held: FileSet,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut holds = self.inner.holds();
        if let Some(at) = holds.iter().position(|held| *held == self.held) {
            holds.swap_remove(at);
        }
        drop(holds);
        self.inner.collect(&self.held);
    }
}

impl Inner {
    /// Keeps the files of a snapshot.
    pub(crate) fn hold(&self, manifest: &SnapshotManifest) -> Hold<'_> {
        let held = FileSet::from(manifest);
        self.holds().push(held.clone());
        Hold { inner: self, held }
    }

    /// Takes a tag for a snapshot that is going to be written.
    pub(crate) fn reserve(
        &self,
        tag: &SnapshotTag,
        manifest: SnapshotManifest,
        maker: &OperationId,
    ) -> Result<(), EngineError> {
        let failed = self.catalog.get(tag).ok().filter(|row| row.status == SnapshotStatus::Failed);
        // One that was damaged lists files, and others may be over it: it is removed in order.
        if let Some(row) = failed.filter(|row| !row.manifest.layers.is_empty()) {
            self.catalog.remove(&self.registry, tag)?;
            self.collect(&FileSet::from(&row.manifest));
        }
        self.catalog.reserve(&self.registry, tag, manifest, maker)
    }

    /// Removes those of `candidates` that nothing reaches.
    pub(crate) fn collect(&self, candidates: &FileSet) {
        self.files.remove_files(&candidates.minus(&self.reachable()));
        // A layer that stays as another's ancestor is no snapshot's top any more.
        for id in &candidates.layers - &self.tops() {
            self.files.remove_view(&id);
        }
    }

    /// The top layers of all snapshots: what mapping views go by.
    pub(crate) fn tops(&self) -> BTreeSet<LayerId> {
        self.catalog.list().into_iter().filter_map(|mut row| row.manifest.layers.pop()).collect()
    }

    /// All layers and overlays that snapshots, sandboxes and work in the background need.
    pub(crate) fn reachable(&self) -> FileSet {
        let listed: FileSet =
            self.catalog.list().iter().map(|row| FileSet::from(&row.manifest)).collect();
        let held: FileSet = self.holds().iter().cloned().collect();
        listed.union(self.held_by_sandboxes()).union(held)
    }

    /// The layers and overlays that sandboxes run over or build their next branch on.
    pub(crate) fn held_by_sandboxes(&self) -> FileSet {
        self.sandboxes().iter().map(|sandbox| sandbox.files()).collect()
    }
}
