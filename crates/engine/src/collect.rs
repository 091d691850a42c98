//! Removal of what nothing reaches any more. A layer or overlay is reachable from every snapshot
//! that lists it and from every sandbox that runs over it; what is reachable from neither is
//! removed.

use std::collections::BTreeSet;

use forkd_types::LayerId;

use crate::engine::Inner;

/// Layers and overlays that something has let go of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    pub(crate) layers: Vec<LayerId>,
    pub(crate) overlays: Vec<LayerId>,
}

impl Inner {
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
        (layers, overlays)
    }

    /// The layers and overlays that sandboxes run over or build their next branch on.
    pub(crate) fn held_by_sandboxes(&self) -> (BTreeSet<LayerId>, BTreeSet<LayerId>) {
        let sandboxes = self.sandboxes();
        let layers = sandboxes.iter().flat_map(|sandbox| sandbox.layers()).collect();
        (layers, sandboxes.iter().flat_map(|sandbox| sandbox.overlays()).collect())
    }
}
