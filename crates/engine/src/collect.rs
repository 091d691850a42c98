//! Removal of what nothing reaches any more. A layer or overlay is reachable from every snapshot
//! that lists it, from every sandbox that runs over it, and from work that reads it; what is
//! reachable from none is removed.

use std::collections::BTreeSet;

use forkd_store::SnapshotManifest;
use forkd_types::{LayerId, OperationId, SnapshotStatus, SnapshotTag};

use crate::EngineError;
use crate::engine::Inner;

/// Layers and overlays that something has let go of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    pub(crate) layers: Vec<LayerId>,
    pub(crate) overlays: Vec<LayerId>,
}

/// What work in the background reads: it stays until this is dropped, whatever is removed
/// meanwhile.
pub(crate) struct Hold<'a> {
    inner: &'a Inner,
    held: Candidates,
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
        let (layers, overlays) = (manifest.layers.clone(), manifest.overlays.clone());
        let held = Candidates { layers, overlays };
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
            let (layers, overlays) = (row.manifest.layers, row.manifest.overlays);
            self.collect(&Candidates { layers, overlays });
        }
        self.catalog.reserve(&self.registry, tag, manifest, maker)
    }

    /// Removes those of `candidates` that nothing reaches.
    pub(crate) fn collect(&self, candidates: &Candidates) {
        let (layers, overlays) = self.reachable();
        for id in candidates.layers.iter().filter(|id| !layers.contains(*id)) {
            self.files.remove_layer(id);
        }
        // A layer that stays as another's ancestor is no snapshot's top any more.
        let tops = self.tops();
        for id in candidates.layers.iter().filter(|id| !tops.contains(*id)) {
            self.files.remove_view(id);
        }
        for id in candidates.overlays.iter().filter(|id| !overlays.contains(*id)) {
            self.files.remove_overlay(id);
        }
    }

    /// The top layers of all snapshots: what mapping views go by.
    pub(crate) fn tops(&self) -> BTreeSet<LayerId> {
        self.catalog.list().into_iter().filter_map(|mut row| row.manifest.layers.pop()).collect()
    }

    /// All layers and overlays that snapshots and sandboxes need.
    pub(crate) fn reachable(&self) -> (BTreeSet<LayerId>, BTreeSet<LayerId>) {
        let (mut layers, mut overlays) = (BTreeSet::new(), BTreeSet::new());
        for row in self.catalog.list() {
            layers.extend(row.manifest.layers);
            overlays.extend(row.manifest.overlays);
        }
        let (of_sandboxes, disks) = self.held_by_sandboxes();
        layers.extend(of_sandboxes);
        overlays.extend(disks);
        for held in self.holds().iter() {
            layers.extend(held.layers.iter().cloned());
            overlays.extend(held.overlays.iter().cloned());
        }
        (layers, overlays)
    }

    /// The layers and overlays that sandboxes run over or build their next branch on.
    pub(crate) fn held_by_sandboxes(&self) -> (BTreeSet<LayerId>, BTreeSet<LayerId>) {
        let sandboxes = self.sandboxes();
        let layers = sandboxes.iter().flat_map(|sandbox| sandbox.layers()).collect();
        (layers, sandboxes.iter().flat_map(|sandbox| sandbox.overlays()).collect())
    }
}
