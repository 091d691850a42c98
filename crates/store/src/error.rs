//! What can go wrong in the store.

use std::io;
use std::path::PathBuf;

use forkd_types::{ByteCount, LayerId};

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
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { what, path: path.into(), source }
    }
}
