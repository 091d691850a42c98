//! The parts of a snapshot: opened for use, or refused by name.

use std::fs::File;
use std::path::{Path, PathBuf};

use forkd_store::{Layer, SnapshotRow, StoreError};
use forkd_types::{ByteCount, SnapshotTag};
use forkd_vmm::is_confined_disk;

use super::Snapshots;
use crate::EngineError;
use crate::host::Image;

/// How the part of a snapshot is called in errors that lies outside the store.
const IMAGE: &str = "the image";

impl Snapshots {
    /// The image that a snapshot goes back to, as it was then. Blocks.
    pub(crate) fn image_of(&self, row: &SnapshotRow) -> Result<Image, EngineError> {
        let image = self.images.of_snapshot(&row.manifest)?;
        let state = match image.content_hash == row.manifest.image_hash {
            true => self.images.check(&image).err().map(|problem| format!("damaged: {problem}")),
            false => Some("not the one that it was made from: it was built again".to_owned()),
        };
        let Some(state) = state else { return Ok(image) };
        let (tag, layer) = (row.tag.clone(), image.name);
        Err(EngineError::SnapshotDamaged { tag, what: IMAGE, layer, state })
    }

    /// How large the disk over a snapshot's image is, whether or not the image is whole.
    pub(crate) fn disk_size(&self, row: &SnapshotRow) -> Result<Option<ByteCount>, EngineError> {
        Ok(self.images.of_snapshot(&row.manifest)?.root_disk.map(|(_, bytes)| bytes))
    }

    /// Refuses by name a snapshot of which a disk overlay is missing or damaged, or says that it
    /// lies over anything but the base image at `base` or an overlay by a confined VMM's name.
    pub(crate) fn require_overlays(
        &self,
        row: &SnapshotRow,
        base: &Path,
    ) -> Result<(), EngineError> {
        let expected = |name: &Path| name == base || is_confined_disk(name);
        for id in &row.manifest.overlays {
            let sum = row.manifest.overlay_checksums.get(id);
            let required = self.files.require_overlay(id, sum).and_then(|header| {
                let refused = |how| StoreError::OverlayRefused { id: id.clone(), how };
                header.require_backing(expected).map_err(refused)
            });
            required.map_err(|error| damaged(row, error))?;
        }
        Ok(())
    }

    /// Opens the layers of a snapshot, base first; one that is missing or damaged is refused by
    /// name.
    pub(super) fn open_layers(&self, row: &SnapshotRow) -> Result<Vec<Layer>, EngineError> {
        let open = |id| self.files.open_layer(id).map_err(|error| damaged(row, error));
        row.manifest.layers.iter().map(open).collect()
    }

    /// Where a snapshot's device state is; one without is refused by name.
    pub(super) fn require_device_state(&self, row: &SnapshotRow) -> Result<PathBuf, EngineError> {
        let Some(top) = row.manifest.layers.last() else {
            return Err(EngineError::Internal(format!("snapshot {} has no layers", row.tag)));
        };
        let sum = row.manifest.device_state.as_ref();
        self.files.require_device_state(top, sum).map_err(|error| damaged(row, error))
    }

    /// Opens a snapshot's device state.
    pub(crate) fn open_device_state(&self, row: &SnapshotRow) -> Result<File, EngineError> {
        let path = self.require_device_state(row)?;
        File::open(&path).map_err(|source| StoreError::File { what: "open", path, source }.into())
    }

    /// Marks a snapshot of which a part is missing or damaged as failed: no good copy is left.
    pub(crate) fn note_damage(&self, tag: &SnapshotTag, error: &EngineError) {
        let EngineError::SnapshotDamaged { what, layer, state, .. } = error else { return };
        // The image is no part of the snapshot: it comes back with the right one.
        if *what == IMAGE || self.catalog.ready(tag).is_err() {
            return;
        }
        let reason = format!("{what} `{layer}` is {state}");
        tracing::error!(snapshot = %tag, %reason, "a snapshot is damaged");
        self.catalog.fail(tag, &reason);
    }
}

/// The error for a snapshot of which a part is missing or damaged, as the store says.
pub(super) fn damaged(row: &SnapshotRow, error: StoreError) -> EngineError {
    damaged_part(row, &error).unwrap_or_else(|| error.into())
}

/// The same, if it is damage that the store tells of.
pub(super) fn damaged_part(row: &SnapshotRow, error: &StoreError) -> Option<EngineError> {
    let layer = "the memory layer";
    let (what, id, state) = match error {
        StoreError::LayerMissing(id) => (layer, id.as_str(), "missing".to_owned()),
        StoreError::LayerDamaged { id, how } => (layer, id.as_str(), format!("damaged: {how}")),
        StoreError::DeviceStateDamaged { id, how } => {
            ("the device state", id.as_str(), how.clone())
        }
        StoreError::OverlayDamaged { id, how } => ("the disk overlay", id.as_str(), how.clone()),
        StoreError::OverlayRefused { id, how } => {
            ("the disk overlay", id.as_str(), format!("refused: {how}"))
        }
        _ => return None,
    };
    let (tag, layer) = (row.tag.clone(), id.to_string());
    Some(EngineError::SnapshotDamaged { tag, what, layer, state })
}
