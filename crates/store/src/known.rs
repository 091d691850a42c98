//! What this process knows of the files of a store, and no file says: which of them it has written
//! or checked itself, who is busy with one, when it was used, and what space is promised.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::{ByteCount, LayerId, OverlayId};

use crate::{FileChecksum, StoreError, space};

/// Shared by all clones of a [`StoreFiles`].
#[derive(Debug, Default)]
pub(crate) struct Known {
    files: Mutex<Files>,
    /// Layers that are being opened, made or evicted: one party at a time for each.
    turns: Mutex<BTreeMap<LayerId, Arc<Mutex<()>>>>,
    promised: Mutex<BTreeMap<PathBuf, ByteCount>>,
}

#[derive(Debug, Default)]
struct Files {
    /// Hot layers whose pages are what was written.
    good: BTreeSet<LayerId>,
    /// Frozen overlays that are on the disk and hold this.
    overlays: BTreeMap<OverlayId, FileChecksum>,
    /// The same of durable layers.
    durable: BTreeSet<LayerId>,
    /// When a layer was used last: the count of uses until then.
    used: BTreeMap<LayerId, u64>,
    uses: u64,
}

impl Known {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_good(&self, id: &LayerId) -> bool {
        self.files().good.contains(id)
    }

    pub(crate) fn note_good(&self, id: &LayerId) {
        self.files().good.insert(id.clone());
    }

    pub(crate) fn is_durable_good(&self, id: &LayerId) -> bool {
        self.files().durable.contains(id)
    }

    pub(crate) fn note_durable_good(&self, id: &LayerId) {
        self.files().durable.insert(id.clone());
    }

    /// The hot copy is gone or suspect.
    pub(crate) fn forget_good(&self, id: &LayerId) {
        self.files().good.remove(id);
    }

    pub(crate) fn known_overlay(&self, id: &OverlayId) -> Option<FileChecksum> {
        self.files().overlays.get(id).copied()
    }

    pub(crate) fn note_overlay(&self, id: &OverlayId, checksum: FileChecksum) {
        self.files().overlays.insert(id.clone(), checksum);
    }

    /// The overlay is gone.
    pub(crate) fn forget_overlay(&self, id: &OverlayId) {
        self.files().overlays.remove(id);
    }

    /// The layer is gone.
    pub(crate) fn forget_layer(&self, id: &LayerId) {
        let mut files = self.files();
        files.good.remove(id);
        files.durable.remove(id);
        files.used.remove(id);
        drop(files);
        let mut turns = self.turns();
        if turns.get(id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(id);
        }
    }

    pub(crate) fn note_use(&self, id: &LayerId) {
        let mut files = self.files();
        files.uses += 1;
        let now = files.uses;
        files.used.insert(id.clone(), now);
    }

    /// Orders layers by their last use; those that nobody has used yet come first.
    pub(crate) fn last_use(&self, id: &LayerId) -> u64 {
        self.files().used.get(id).copied().unwrap_or(0)
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<LayerId, Arc<Mutex<()>>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever holds the returned lock is the only one who opens, makes or evicts this layer's hot
    /// copy.
    pub(crate) fn turn(&self, id: &LayerId) -> Arc<Mutex<()>> {
        Arc::clone(self.turns().entry(id.clone()).or_default())
    }

    /// Promises space for the file at `path` in `directory`, which is going to be written: what others ask for
    /// until the promise is dropped must fit besides.
    pub(crate) fn promise(
        &self,
        directory: &Path,
        path: &Path,
        bytes: ByteCount,
    ) -> Result<(), StoreError> {
        let mut promised = self.promises();
        let outstanding: ByteCount = promised
            .iter()
            .map(|(path, bytes)| {
                let written = fs::metadata(path).map_or(0, |file| file.blocks() * 512);
                ByteCount::new(bytes.get().saturating_sub(written))
            })
            .sum();
        space::require(directory, bytes + outstanding)?;
        promised.insert(path.to_owned(), bytes);
        Ok(())
    }

    pub(crate) fn keep_promise(&self, path: &Path) {
        self.promises().remove(path);
    }

    fn promises(&self) -> MutexGuard<'_, BTreeMap<PathBuf, ByteCount>> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::{LayerWriter, StoreError, StoreFiles, free_bytes};
    use forkd_types::ByteCount;

    #[test]
    fn space_that_is_promised_to_one_layer_is_not_promised_to_another() {
        let state = tempfile::tempdir().unwrap();
        let hot = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = StoreFiles::open(state.path(), hot.path()).unwrap();
        let most = ByteCount::new(free_bytes(hot.path()).unwrap().get() / 5 * 3);
        let create = || LayerWriter::create(&files, ByteCount::from_mib(1), most);
        let first = create().unwrap();
        let refused = create().unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
        first.seal_base().unwrap();
        let second = create().unwrap();
        drop(second);
        create().unwrap();
    }
}
