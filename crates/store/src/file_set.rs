//! The files that something needs: memory layers and disk overlays.
//!
//! A set has no order. Where order means something, in a chain of layers and in the overlays of a
//! disk, a list of ids says it.

use std::collections::BTreeSet;

use forkd_types::{ByteCount, LayerId, OverlayId};

use crate::space::file_bytes;
use crate::{SnapshotManifest, StoreFiles};

/// Memory layers, with all that goes by their names, and disk overlays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSet {
    /// Memory layers.
    pub layers: BTreeSet<LayerId>,
    /// Disk overlays.
    pub overlays: BTreeSet<OverlayId>,
}

impl FileSet {
    /// Exactly these.
    pub fn new(
        layers: impl IntoIterator<Item = LayerId>,
        overlays: impl IntoIterator<Item = OverlayId>,
    ) -> Self {
        Self { layers: layers.into_iter().collect(), overlays: overlays.into_iter().collect() }
    }

    /// What is in either.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.layers.extend(other.layers);
        self.overlays.extend(other.overlays);
        self
    }

    /// What is in this one and not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self { layers: &self.layers - &other.layers, overlays: &self.overlays - &other.overlays }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.overlays.is_empty()
    }
}

impl From<&SnapshotManifest> for FileSet {
    fn from(manifest: &SnapshotManifest) -> Self {
        Self::new(manifest.layers.iter().cloned(), manifest.overlays.iter().cloned())
    }
}

impl FromIterator<Self> for FileSet {
    fn from_iter<T: IntoIterator<Item = Self>>(sets: T) -> Self {
        sets.into_iter().fold(Self::default(), Self::union)
    }
}

impl StoreFiles {
    /// What these occupy, each counted once: the durable copy of a layer if there is one, else the
    /// hot one.
    #[must_use]
    pub fn occupied(&self, files: &FileSet) -> ByteCount {
        let layers = files.layers.iter().map(|id| {
            let durable =
                [self.durable_pages(id), self.durable_index(id), self.durable_device_state(id)];
            let hot = [self.hot_pages(id), self.hot_index(id), self.hot_device_state(id)];
            let paths = if durable[1].exists() { durable } else { hot };
            paths.iter().map(|path| file_bytes(path)).sum::<ByteCount>()
        });
        let overlays = files.overlays.iter().map(|id| file_bytes(&self.overlay(id)));
        layers.chain(overlays).sum()
    }

    /// Removes all copies of these layers, with what belongs to them, and these overlays.
    pub fn remove_files(&self, files: &FileSet) {
        files.layers.iter().for_each(|id| self.remove_layer(id));
        files.overlays.iter().for_each(|id| self.remove_overlay(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_overlays_are_added_and_taken_away_each_among_themselves() {
        // The same digits name a layer in one place and an overlay in the other.
        let names = ["ly-0000000000000001", "ly-0000000000000002"];
        let [layer, other_layer] = names.map(|name| name.parse::<LayerId>().unwrap());
        let [overlay, other_overlay] = names.map(|name| name.parse::<OverlayId>().unwrap());
        let first = FileSet::new([layer.clone()], [overlay.clone()]);
        let second = FileSet::new([other_layer], [overlay, other_overlay]);
        let both: FileSet = [first.clone(), second.clone()].into_iter().collect();
        assert_eq!(both.minus(&second), FileSet::new([layer], []));
        assert_eq!(both.minus(&first).union(first.clone()), both);
        assert!(both.minus(&both).is_empty() && !first.is_empty());
        assert!(!both.minus(&FileSet::new(both.layers.clone(), [])).is_empty());
    }
}
