//! Where everything lies. The only place that makes paths of ids.
//!
//! ```text
//! <hot>/layers/<layer>             pages, sparse: offset = position in guest RAM
//! <hot>/layers/<layer>.index       which pages
//! <hot>/layers/<layer>.device      device state of the snapshot whose top layer this is
//! <hot>/layers/<layer>.view        pages of the mapping view of the chain with this top layer
//! <hot>/layers/<layer>.view-index  its runs
//! <hot>/vms/<sandbox>/             placeholder of guest RAM, device state being written
//! <state>/registry.sqlite
//! <state>/registry.spare           given up when the disk is full, so that rows can be removed
//! <state>/layers/                  durable copies, same names
//! <state>/overlays/<overlay>.qcow2 disk overlays; frozen ones belong to snapshots
//! <state>/vms/<sandbox>/           a link to each overlay of a VM: all that a confined VMM sees
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_types::{LayerId, OverlayId, SandboxId};

use crate::StoreError;
use crate::disk::remove;
use crate::known::Known;
use crate::private::private_directory;

/// The directories of one store.
#[derive(Debug, Clone)]
pub struct StoreFiles {
    state: PathBuf,
    hot: PathBuf,
    known: Arc<Known>,
}

impl StoreFiles {
    /// Uses, and creates where needed, the given directories. Only their owner may enter them: they
    /// hold the memory of guests.
    ///
    /// # Errors
    /// When a directory cannot be created, or is not this user's alone.
    pub fn open(state: &Path, hot: &Path) -> Result<Self, StoreError> {
        let known = Arc::default();
        let files = Self { state: state.to_owned(), hot: hot.to_owned(), known };
        for directory in [
            files.state.clone(),
            files.hot.clone(),
            files.hot.join("layers"),
            files.hot.join("vms"),
            files.state.join("layers"),
            files.state.join("overlays"),
            files.state.join("vms"),
        ] {
            private_directory(&directory)?;
        }
        Ok(files)
    }

    /// What this process knows of them.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// The directory of durable files.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directory of hot files.
    #[must_use]
    pub fn hot(&self) -> &Path {
        &self.hot
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.state.join("registry.sqlite")
    }

    /// Pages of a layer, hot.
    #[must_use]
    pub fn hot_pages(&self, id: &LayerId) -> PathBuf {
        self.hot.join("layers").join(id.as_str())
    }

    /// Index of a layer, hot.
    #[must_use]
    pub fn hot_index(&self, id: &LayerId) -> PathBuf {
        self.hot.join("layers").join(format!("{id}.index"))
    }

    /// Device state that belongs to a layer, hot.
    #[must_use]
    pub fn hot_device_state(&self, id: &LayerId) -> PathBuf {
        self.hot.join("layers").join(format!("{id}.device"))
    }

    /// Pages of the mapping view of the chain whose top is `id`.
    #[must_use]
    pub fn view_pages(&self, id: &LayerId) -> PathBuf {
        self.hot.join("layers").join(format!("{id}.view"))
    }

    /// Runs of the mapping view of the chain whose top is `id`.
    #[must_use]
    pub fn view_index(&self, id: &LayerId) -> PathBuf {
        self.hot.join("layers").join(format!("{id}.view-index"))
    }

    pub(crate) fn durable_directory(&self) -> PathBuf {
        self.state.join("layers")
    }

    /// Pages of a layer, durable.
    #[must_use]
    pub fn durable_pages(&self, id: &LayerId) -> PathBuf {
        self.durable_directory().join(id.as_str())
    }

    /// Index of a layer, durable.
    #[must_use]
    pub fn durable_index(&self, id: &LayerId) -> PathBuf {
        self.durable_directory().join(format!("{id}.index"))
    }

    /// Device state that belongs to a layer, durable.
    #[must_use]
    pub fn durable_device_state(&self, id: &LayerId) -> PathBuf {
        self.durable_directory().join(format!("{id}.device"))
    }

    /// A disk overlay.
    #[must_use]
    pub fn overlay(&self, id: &OverlayId) -> PathBuf {
        self.overlays().join(format!("{id}.qcow2"))
    }

    /// The directory of disk overlays.
    #[must_use]
    pub fn overlays(&self) -> PathBuf {
        self.state.join("overlays")
    }

    /// Links to the disk overlays of one VM.
    #[must_use]
    pub fn overlay_links(&self, id: &SandboxId) -> PathBuf {
        self.state.join("vms").join(id.as_str())
    }

    /// Hot files of one VM.
    #[must_use]
    pub fn vm_directory(&self, id: &SandboxId) -> PathBuf {
        self.hot.join("vms").join(id.as_str())
    }

    /// Removes all copies of a layer, and the device state and the view that belong to it. Children
    /// that have it mapped keep it until they end.
    pub fn remove_layer(&self, id: &LayerId) {
        self.remove_hot(id);
        // The index first: without it the layer does not count as there.
        for path in [self.durable_index(id), self.durable_pages(id), self.durable_device_state(id)]
        {
            remove(&path);
        }
        self.known().forget_layer(id);
    }

    /// Removes the hot copy of a layer with what belongs to it.
    pub(crate) fn remove_hot(&self, id: &LayerId) {
        self.known().forget_good(id);
        self.remove_view(id);
        for path in [self.hot_index(id), self.hot_pages(id), self.hot_device_state(id)] {
            remove(&path);
        }
    }

    /// Removes the mapping view of the chain whose top is `id`.
    pub fn remove_view(&self, id: &LayerId) {
        remove(&self.view_index(id));
        remove(&self.view_pages(id));
    }

    /// Removes a disk overlay.
    pub fn remove_overlay(&self, id: &OverlayId) {
        remove(&self.overlay(id));
        self.known().forget_overlay(id);
    }

    /// Removes the hot files of one VM, and its links to overlays.
    pub fn remove_vm_directory(&self, id: &SandboxId) {
        for path in [self.vm_directory(id), self.overlay_links(id)] {
            if let Err(error) = fs::remove_dir_all(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove a VM's files");
            }
        }
    }
}

/// An empty store, and the directories that it is in: they go when they are dropped.
#[cfg(test)]
pub(crate) fn temporary_store() -> (StoreFiles, [tempfile::TempDir; 2]) {
    let state = tempfile::tempdir().unwrap();
    let hot = tempfile::tempdir_in("/dev/shm").unwrap();
    let files = StoreFiles::open(state.path(), hot.path()).unwrap();
    (files, [state, hot])
}
