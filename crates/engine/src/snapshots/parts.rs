//! The parts of a snapshot: opened for use, or refused by name.

use std::fs::File;
use std::path::PathBuf;

use forkd_store::{Layer, SnapshotRow, StoreError};

use super::Snapshots;
use crate::EngineError;
use crate::host::Image;

/// How the part of a snapshot is called in errors that lies outside the store.
pub(crate) const IMAGE: &str = "the image";

impl Snapshots {
    /// The image that a snapshot goes back to, as it was then.
    pub(crate) fn image_of(&self, row: &SnapshotRow) -> Result<Image, EngineError> {
        let image = self.images.find(&row.manifest.image)?;
        if image.content_hash == row.manifest.image_hash {
            return Ok(image);
        }
        Err(EngineError::SnapshotDamaged {
            tag: row.tag.clone(),
            what: IMAGE,
            layer: image.name,
            state: "not the one that it was made from: it was built again".to_owned(),
        })
    }

    /// Refuses by name a snapshot of which a disk overlay is missing or damaged.
    pub(crate) fn require_overlays(&self, row: &SnapshotRow) -> Result<(), EngineError> {
        for id in &row.manifest.overlays {
            let sum = row.manifest.overlay_checksums.get(id);
            self.files.require_overlay(id, sum).map_err(|error| damaged(row, error))?;
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
        _ => return None,
    };
    let (tag, layer) = (row.tag.clone(), id.to_string());
    Some(EngineError::SnapshotDamaged { tag, what, layer, state })
}
