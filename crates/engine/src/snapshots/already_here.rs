//! What of an artifact is here already, in another snapshot.
//!
//! A snapshot that came as an artifact, or went as one, knows what its parts hold. The layers of
//! another artifact that hold the same, from the base up, need not come again: the new snapshot
//! lists those that are here, as a branch lists those of its source. So do disk overlays.
//!
//! Guarantees: a layer is shared only over the same layers, and the top one of an artifact only
//! with its device state, which goes by its name. What is found is whole, and held until the caller
//! is done. A snapshot of which a part turns out to be damaged is marked as failed, and what it
//! would have spared comes.

use forkd_artifact::{AlreadyHere, Contents};
use forkd_store::{KnownContents, SnapshotManifest, SnapshotRow};

use super::Snapshots;
use super::files::Hold;
use super::parts::damaged;
use crate::EngineError;

impl Snapshots {
    /// The parts of an artifact that this store has, from the bottom up; `held` keeps them.
    pub(super) fn already_here<'a>(
        &'a self,
        contents: &Contents,
        held: &mut Vec<Hold<'a>>,
    ) -> AlreadyHere {
        let rows = self.catalog.list();
        let mut here = AlreadyHere::default();
        let layers = |row: &SnapshotRow| same_layers(&row.manifest, contents);
        if let Some((row, count)) = self.best(&rows, layers, Self::require_layers, held) {
            here.layers = row.manifest.layers[..count].to_vec();
        }
        let overlays = |row: &SnapshotRow| same_overlays(&row.manifest, contents);
        if let Some((row, count)) = self.best(&rows, overlays, Self::require_lowest, held) {
            here.overlays = row.manifest.overlays[..count].to_vec();
        }
        here
    }

    /// The snapshot of which most parts are the artifact's, as `same` counts them, and how many;
    /// those are whole and held.
    fn best<'a, 'r>(
        &'a self,
        rows: &'r [SnapshotRow],
        same: impl Fn(&SnapshotRow) -> usize,
        whole: impl Fn(&Self, &SnapshotRow, usize) -> Result<(), EngineError>,
        held: &mut Vec<Hold<'a>>,
    ) -> Option<(&'r SnapshotRow, usize)> {
        let counted = rows.iter().map(|row| (row, same(row))).filter(|(_, count)| *count > 0);
        let mut counted: Vec<_> = counted.collect();
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counted.into_iter().find(|(row, count)| {
            // One that is not ready, or goes just now, is none to build on.
            let Ok(hold) = self.catalog.while_ready(row, || self.files.hold(&row.manifest)) else {
                return false;
            };
            let is_whole = whole(self, row, *count);
            let is_whole = is_whole.inspect_err(|error| self.note_damage(&row.tag, error)).is_ok();
            held.push(hold);
            is_whole
        })
    }

    fn require_layers(&self, row: &SnapshotRow, count: usize) -> Result<(), EngineError> {
        let open = |id| self.files.open_layer(id).map_err(|error| damaged(row, error));
        row.manifest.layers[..count].iter().try_for_each(|id| open(id).map(drop))?;
        // The top one goes with its device state.
        if count < row.manifest.layers.len() {
            return Ok(());
        }
        self.require_device_state(row).map(drop)
    }

    fn require_lowest(&self, row: &SnapshotRow, count: usize) -> Result<(), EngineError> {
        let manifest = &row.manifest;
        manifest.overlays[..count].iter().try_for_each(|id| {
            let required = self.files.require_overlay(id, manifest.overlay_checksums.get(id));
            required.map(drop).map_err(|error| damaged(row, error))
        })
    }
}

/// How many layers hold what the artifact's do, from the base up.
fn same_layers(manifest: &SnapshotManifest, contents: &Contents) -> usize {
    let known = manifest.layers.iter().map(|id| manifest.contents.layers.get(id));
    let same = known.zip(&contents.layers).take_while(|(known, wanted)| *known == Some(*wanted));
    let same = same.count();
    let is_whole = same == contents.layers.len();
    let has_devices = same == manifest.layers.len()
        && manifest.contents.device_state == Some(contents.device_state);
    if is_whole && !has_devices { same.saturating_sub(1) } else { same }
}

/// How many overlays hold what the artifact's do, from the lowest up.
fn same_overlays(manifest: &SnapshotManifest, contents: &Contents) -> usize {
    let known = manifest.overlays.iter().map(|id| manifest.contents.overlays.get(id));
    known.zip(&contents.overlays).take_while(|(known, wanted)| *known == Some(*wanted)).count()
}

/// What the parts of a snapshot hold, by what they are called here.
pub(super) fn known(contents: &Contents, manifest: &SnapshotManifest) -> KnownContents {
    let layers = manifest.layers.iter().cloned().zip(contents.layers.iter().copied());
    let overlays = manifest.overlays.iter().cloned().zip(contents.overlays.iter().copied());
    KnownContents {
        layers: layers.collect(),
        overlays: overlays.collect(),
        device_state: Some(contents.device_state),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forkd_store::MachineIdentity;
    use forkd_types::{ByteCount, Digest};

    use super::*;

    fn contents(layers: &[&str], overlays: &[&str], device_state: &str) -> Contents {
        let digests = |all: &[&str]| all.iter().map(|one| Digest::of(one.as_bytes())).collect();
        Contents {
            layers: digests(layers),
            overlays: digests(overlays),
            device_state: Digest::of(device_state.as_bytes()),
        }
    }

    /// A snapshot that has come with this.
    fn snapshot(contents: &Contents) -> SnapshotManifest {
        let id = |kind: u8, at: usize| format!("ly-{kind:08x}{at:08x}").parse().unwrap();
        let mut manifest = SnapshotManifest {
            image: String::new(),
            image_hash: String::new(),
            memory: ByteCount::from_mib(64),
            vcpus: 1,
            layers: (0..contents.layers.len()).map(|at| id(0, at)).collect(),
            overlays: (0..contents.overlays.len())
                .map(|at| format!("ly-{:016x}", at + 1).parse().unwrap())
                .collect(),
            overlay_checksums: BTreeMap::new(),
            device_state: None,
            contents: KnownContents::default(),
            machine: MachineIdentity {
                vmm_version: String::new(),
                accelerator: String::new(),
                cpu_model: String::new(),
            },
            network_device: false,
            gateway_certificate: None,
            private: false,
            parent_tag: None,
            branched_from: None,
        };
        manifest.contents = known(contents, &manifest);
        manifest
    }

    #[test]
    fn layers_are_the_same_from_the_base_up_to_the_first_that_differs() {
        let here = snapshot(&contents(&["a", "b", "c"], &["x", "y"], "devices"));
        for (layers, same) in [
            (&["a", "b", "d"][..], 2),
            (&["a", "b", "c", "d"], 3),
            (&["b", "c"], 0),
            (&["a", "d", "c"], 1),
        ] {
            let wanted = contents(layers, &[], "others");
            assert_eq!(same_layers(&here, &wanted), same, "{layers:?}");
        }
        assert_eq!(same_overlays(&here, &contents(&[], &["x", "z"], "")), 1);
        assert_eq!(same_overlays(&here, &contents(&[], &["y"], "")), 0);
    }

    #[test]
    fn the_top_layer_is_shared_only_with_its_device_state() {
        let here = snapshot(&contents(&["a", "b"], &[], "devices"));
        assert_eq!(same_layers(&here, &contents(&["a", "b"], &[], "devices")), 2);
        assert_eq!(same_layers(&here, &contents(&["a", "b"], &[], "others")), 1);
        // It goes by the name of another layer here.
        assert_eq!(same_layers(&here, &contents(&["a"], &[], "devices")), 0);
    }

    #[test]
    fn a_layer_that_was_merged_since_is_another_one() {
        let mut here = snapshot(&contents(&["a", "b"], &[], "devices"));
        here.layers = vec!["ly-00000000000000ff".parse().unwrap()];
        assert_eq!(same_layers(&here, &contents(&["a", "b"], &[], "devices")), 0);
    }
}
