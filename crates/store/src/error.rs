//! What can go wrong in the store.

use std::io;
use std::path::PathBuf;

use forkd_types::{ByteCount, LayerId, OverlayId, SnapshotTag};

use crate::Qcow2Error;

/// A store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// A directory is not this user's alone.
    #[error("`{}` {problem}", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Whose it is, or what others may do there, and what to do about it.
        problem: String,
    },
    /// A layer is not there, neither hot nor durable.
    #[error("layer {0} is missing")]
    LayerMissing(LayerId),
    /// A layer is not what it should be.
    #[error("layer {id} is damaged: {how}")]
    LayerDamaged {
        /// The layer.
        id: LayerId,
        /// How that shows.
        how: String,
    },
    /// The device state of a snapshot is missing or damaged.
    #[error("the device state {id} is {how}")]
    DeviceStateDamaged {
        /// The layer that it belongs to.
        id: LayerId,
        /// `missing`, or `damaged` and how that shows.
        how: String,
    },
    /// A disk overlay is missing or damaged.
    #[error("the disk overlay {id} is {how}")]
    OverlayDamaged {
        /// The overlay.
        id: OverlayId,
        /// `missing`, or `damaged` and how that shows.
        how: String,
    },
    /// The header of a disk overlay asks for what forkd does not allow.
    #[error("the disk overlay {id} is refused: {how}")]
    OverlayRefused {
        /// The overlay.
        id: OverlayId,
        /// What it asks for.
        how: Qcow2Error,
    },
    /// The registry refused a statement.
    #[error("registry: {0}")]
    Registry(#[from] rusqlite::Error),
    /// A row of the registry cannot be read.
    #[error("the registry's {what} `{name}` is damaged: {how}")]
    RowDamaged {
        /// `snapshot` or `sandbox`.
        what: &'static str,
        /// Its name.
        name: String,
        /// How that shows.
        how: String,
    },
    /// A snapshot's manifest was written by another version.
    #[error(
        "the manifest of snapshot `{tag}` has format {found}, this program knows {known}: start \
         the version of forkd that made it, or remove the snapshot with that version"
    )]
    ManifestFormat {
        /// The snapshot.
        tag: SnapshotTag,
        /// What the manifest says.
        found: u32,
        /// What this program writes.
        known: u32,
    },
    /// The registry was written by another version.
    #[error("the registry has schema {found}, this program knows {known}")]
    RegistryVersion {
        /// What the file says.
        found: i64,
        /// What this program writes.
        known: i64,
    },
    /// Not enough space.
    #[error("{needed} are needed in `{}`, {free} are free", directory.display())]
    NoSpace {
        /// The file system.
        directory: PathBuf,
        /// Bytes needed, with reserve.
        needed: ByteCount,
        /// Bytes free.
        free: ByteCount,
    },
}

impl StoreError {
    /// Whether a part of a snapshot is missing, damaged or refused, so that trying again is of no
    /// use.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::LayerMissing(_)
                | Self::LayerDamaged { .. }
                | Self::DeviceStateDamaged { .. }
                | Self::OverlayDamaged { .. }
                | Self::OverlayRefused { .. }
        )
    }

    /// A failure of the registry that SQLite does not tell.
    pub(crate) fn registry(source: io::Error) -> Self {
        Self::File { what: "write", path: "registry.sqlite".into(), source }
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { what, path: path.into(), source }
    }
}
