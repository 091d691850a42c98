//! Hot copies that can be spared: those of layers whose durable copy is good. An evicted one is
//! made anew when it is used next.
//!
//! Does not do: know who uses a layer. Whoever evicts says which ones are held: those of sandboxes,
//! and those of snapshots that are not durable, of which another part may still be missing on the
//! disk. A layer that is being opened is held by whoever opens it before it asks for it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{PoisonError, TryLockError};

use forkd_types::{ByteCount, LayerId};

use crate::{StoreError, StoreFiles};

/// What the hot copy of one layer takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotUsage {
    /// The layer.
    pub id: LayerId,
    /// Bytes of its files, with the view that goes by its name.
    pub bytes: ByteCount,
}

impl StoreFiles {
    /// The hot layers, the one that was used least recently first.
    #[must_use]
    pub fn hot_layers(&self) -> Vec<HotUsage> {
        let entries = fs::read_dir(self.hot().join("layers")).into_iter().flatten().flatten();
        let id = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        let mut layers: Vec<(u64, HotUsage)> = entries
            .filter_map(id)
            .map(|id| (self.known().last_use(&id), HotUsage { bytes: self.hot_bytes(&id), id }))
            .collect();
        layers.sort_by(|(at, a), (bt, b)| (at, &a.id).cmp(&(bt, &b.id)));
        layers.into_iter().map(|(_, layer)| layer).collect()
    }

    fn hot_bytes(&self, id: &LayerId) -> ByteCount {
        let allocated = |path: &Path| fs::metadata(path).map_or(0, |file| file.blocks() * 512);
        let paths = [
            self.hot_pages(id),
            self.hot_index(id),
            self.hot_device_state(id),
            self.view_pages(id),
            self.view_index(id),
        ];
        ByteCount::new(paths.iter().map(|path| allocated(path)).sum())
    }

    /// Removes hot copies until they take at most `budget`, the least recently used first. Those
    /// that `is_held` names stay, and those without a good durable copy; so it may be more. Returns
    /// what was freed.
    pub fn evict(&self, budget: ByteCount, is_held: &dyn Fn(&LayerId) -> bool) -> ByteCount {
        let layers = self.hot_layers();
        let mut used: ByteCount = layers.iter().map(|layer| layer.bytes).sum();
        let mut freed = ByteCount::ZERO;
        for layer in layers {
            if used <= budget {
                break;
            }
            match self.evict_one(&layer.id, is_held) {
                Ok(true) => {
                    tracing::info!(layer = %layer.id, bytes = %layer.bytes, "evicted a hot copy");
                    used = used - layer.bytes;
                    freed += layer.bytes;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(layer = %layer.id, %error, "a hot copy cannot be evicted");
                }
            }
        }
        freed
    }

    fn evict_one(
        &self,
        id: &LayerId,
        is_held: &dyn Fn(&LayerId) -> bool,
    ) -> Result<bool, StoreError> {
        if is_held(id) || !self.has_durable(id) {
            return Ok(false);
        }
        // It takes the place of the hot one for good, so it is read before.
        self.check_durable(id)?;
        let turn = self.known().turn(id);
        let _turn = match turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => PoisonError::into_inner(turn),
            // Somebody is opening it.
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        // Again: whoever opens a layer holds it before he asks for his turn.
        if is_held(id) {
            return Ok(false);
        }
        self.remove_hot(id);
        Ok(true)
    }

    /// Whether all that belongs to a hot layer is in the state directory too.
    fn has_durable(&self, id: &LayerId) -> bool {
        let device_state = !self.hot_device_state(id).exists();
        (device_state || self.durable_device_state(id).exists()) && self.durable_copy(id).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use forkd_types::PageIndex;

    use super::*;
    use crate::LayerWriter;
    use crate::files::temporary_store;

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
    }

    impl Store {
        fn new() -> Self {
            let (files, directories) = temporary_store();
            Self { _directories: directories, files }
        }

        /// A layer with one page of `fill`.
        fn layer(&self, fill: u8) -> LayerId {
            let size = ByteCount::from_mib(1);
            let writer = LayerWriter::create(&self.files, size, ByteCount::ZERO).unwrap();
            let file = writer.file().unwrap();
            LayerWriter::write_pages(&file, PageIndex::new(7), &[fill; 4096]).unwrap();
            writer.seal_base().unwrap().index.id
        }

        fn is_hot(&self, id: &LayerId) -> bool {
            self.files.hot_pages(id).exists()
        }

        fn first_byte(&self, id: &LayerId) -> u8 {
            use std::os::unix::fs::FileExt;
            let mut byte = [0];
            let layer = self.files.open_layer(id).unwrap();
            layer.pages.read_exact_at(&mut byte, 7 * 4096).unwrap();
            byte[0]
        }
    }

    #[test]
    fn the_least_recently_used_layers_go_first_and_come_back_on_use() {
        let store = Store::new();
        let layers: Vec<LayerId> = (1..=4).map(|fill| store.layer(fill)).collect();
        layers.iter().for_each(|id| store.files.publish_layer(id).unwrap());
        store.first_byte(&layers[0]);
        let each = store.files.hot_layers()[0].bytes;
        let freed = store.files.evict(each + each, &|_| false);
        assert_eq!(freed, each + each);
        let hot: Vec<bool> = layers.iter().map(|id| store.is_hot(id)).collect();
        assert_eq!(hot, [true, false, false, true], "the first was used again");
        assert_eq!(store.first_byte(&layers[1]), 2);
        assert!(store.is_hot(&layers[1]));
    }

    #[test]
    fn what_is_held_or_not_durable_is_never_evicted() {
        let store = Store::new();
        let [held, fresh, spare] = [1, 2, 3].map(|fill| store.layer(fill));
        store.files.publish_layer(&held).unwrap();
        store.files.publish_layer(&spare).unwrap();
        store.files.evict(ByteCount::ZERO, &|id| *id == held);
        assert!(store.is_hot(&held) && store.is_hot(&fresh) && !store.is_hot(&spare));
    }

    #[test]
    fn a_layer_that_is_being_opened_is_not_evicted() {
        let store = Store::new();
        let id = store.layer(1);
        store.files.publish_layer(&id).unwrap();
        let turn = store.files.known().turn(&id);
        let opening = turn.lock().unwrap();
        store.files.evict(ByteCount::ZERO, &|_| false);
        assert!(store.is_hot(&id));
        drop(opening);
        store.files.evict(ByteCount::ZERO, &|_| false);
        assert!(!store.is_hot(&id));
    }

    #[test]
    fn a_damaged_durable_copy_is_healed_before_the_hot_one_is_evicted() {
        use std::os::unix::fs::FileExt;
        let store = Store::new();
        let id = store.layer(5);
        store.files.publish_layer(&id).unwrap();
        // As another process finds it, which has to read to know.
        let files = StoreFiles::open(store.files.state(), store.files.hot()).unwrap();
        let durable = fs::OpenOptions::new().write(true).open(files.durable_pages(&id)).unwrap();
        durable.write_all_at(&[0xAA], 7 * 4096 + 9).unwrap();
        files.evict(ByteCount::ZERO, &|_| false);
        assert!(store.is_hot(&id), "the only good copy");
    }
}
