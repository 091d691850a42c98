//! Between the hot and the durable copy of a layer.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::PoisonError;

use forkd_sys::file::open_regular;
use forkd_types::{LayerId, OverlayId};

use crate::disk::{checksum_runs, copy_runs, fresh, put, reserve, sync_directory, write_durable};
use crate::failpoint::{Failpoint, reach};
use crate::layer::{Layer, read_index};
use crate::{FileChecksum, LayerIndex, SnapshotManifest, StoreError, StoreFiles, space};

impl StoreFiles {
    /// Writes the durable copies of all parts of a snapshot: when this returns they survive a crash
    /// of the host, and the row that says so may be written. Returns the checksums of its overlays.
    /// `part_done` is called after each layer and each overlay.
    ///
    /// # Errors
    /// When the state directory is full or fails; doing it again goes on from there.
    pub fn publish_parts(
        &self,
        manifest: &SnapshotManifest,
        part_done: &mut dyn FnMut(),
    ) -> Result<BTreeMap<OverlayId, FileChecksum>, StoreError> {
        for id in &manifest.layers {
            self.publish_layer(id)?;
            part_done();
        }
        if let (Some(top), Some(checksum)) = (manifest.layers.last(), &manifest.device_state) {
            self.publish_device_state(top, checksum)?;
        }
        let mut checksums = BTreeMap::new();
        for id in &manifest.overlays {
            let checksum =
                match (manifest.overlay_checksums.get(id), self.known().known_overlay(id)) {
                    // It was published with an ancestor, and never changes.
                    (Some(checksum), _) => {
                        self.require_overlay(id, Some(checksum)).map(|_| *checksum)?
                    }
                    (None, Some(known)) => known,
                    (None, None) => self.publish_overlay(id)?,
                };
            checksums.insert(id.clone(), checksum);
            part_done();
        }
        Ok(checksums)
    }

    /// Writes the durable copy of a hot layer: when this returns, it survives a crash of the host.
    /// Doing it again does no harm: a copy that is there is looked at without reading its pages,
    /// and written anew when it is damaged.
    ///
    /// # Errors
    /// When the state directory is full or fails; what was written is removed.
    pub fn publish_layer(&self, id: &LayerId) -> Result<(), StoreError> {
        match self.durable_copy(id) {
            Ok(_) => return Ok(()),
            Err(StoreError::LayerDamaged { how, .. }) => {
                tracing::warn!(layer = %id, %how, "a damaged durable copy is written anew");
            }
            Err(StoreError::LayerMissing(_)) => {}
            Err(other) => return Err(other),
        }
        self.write_durable_layer(Layer::open_hot(self, id)?)
    }

    fn write_durable_layer(&self, layer: Layer) -> Result<(), StoreError> {
        let mut index = layer.index;
        let id = index.id.clone();
        space::require(self.state(), index.stored_bytes())?;
        let crc = write_durable(&self.durable_pages(&id), |file| {
            file.set_len(index.memory.get())?;
            reserve(file, &index.stored)?;
            copy_runs(&layer.pages, file, &index.stored)
        })?;
        if let Some(wanted) = index.pages_crc32.filter(|wanted| *wanted != crc) {
            // The hot copy was made from a durable one, and has changed since.
            let how = format!("its pages have the checksum {crc:08x} instead of {wanted:08x}");
            self.known().forget_good(&id);
            crate::disk::remove(&self.durable_pages(&id));
            return Err(StoreError::LayerDamaged { id, how });
        }
        index.pages_crc32 = Some(crc);
        // The index last: with it the layer counts as there.
        let bytes = index.encode();
        write_durable(&self.durable_index(&id), |file| file.write_all_at(&bytes, 0))?;
        self.known().note_durable_good(&id);
        Ok(())
    }

    /// Writes the durable copy of the device state that belongs to the top layer `id`, unless it is
    /// there and matches `checksum`.
    ///
    /// # Errors
    /// As [`Self::publish_layer`]; [`StoreError::DeviceStateDamaged`] when there is no good copy.
    pub fn publish_device_state(
        &self,
        id: &LayerId,
        checksum: &FileChecksum,
    ) -> Result<(), StoreError> {
        let durable = self.durable_device_state(id);
        if File::open(&durable).and_then(FileChecksum::of).is_ok_and(|found| found == *checksum) {
            return Ok(());
        }
        let hot = self.require_device_state(id, Some(checksum))?;
        let bytes = fs::read(&hot).map_err(|source| StoreError::file("read", &hot, source))?;
        write_durable(&durable, |file| file.write_all_at(&bytes, 0))
    }

    /// Makes a frozen overlay durable: the VMM wrote it without flushing.
    ///
    /// # Errors
    /// When the file is missing or the disk fails; [`StoreError::OverlayRefused`] when its header
    /// asks for what is not allowed.
    pub fn publish_overlay(&self, id: &OverlayId) -> Result<FileChecksum, StoreError> {
        let path = self.overlay(id);
        let failed = |source| StoreError::file("make durable", &path, source);
        let mut file = open_regular(&path).map_err(failed)?;
        self.header_of(id, &file)?;
        let checksum = file
            .rewind()
            .and_then(|()| file.sync_all())
            .and_then(|()| reach(Failpoint::Flushed(&path)))
            .and_then(|()| FileChecksum::of(file))
            .map_err(failed)?;
        sync_directory(&self.state().join("overlays"))?;
        self.known().note_overlay(id, checksum);
        Ok(checksum)
    }

    /// Opens a layer for mapping. A hot copy that this process has not written is first compared
    /// with its checksum. One that is missing or damaged is made anew from the durable copy: after
    /// a reboot all of them are missing.
    ///
    /// # Errors
    /// [`StoreError::LayerMissing`] when there is no copy, [`StoreError::LayerDamaged`] when there
    /// is no good one.
    pub fn open_layer(&self, id: &LayerId) -> Result<Layer, StoreError> {
        let turn = self.known().turn(id);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.known().note_use(id);
        let opened = Layer::open_hot(self, id).and_then(|layer| self.checked(layer));
        let hot = match opened {
            Ok(layer) => return Ok(layer),
            Err(StoreError::LayerMissing(_)) => None,
            Err(StoreError::LayerDamaged { how, .. }) => Some(how),
            Err(other) => return Err(other),
        };
        match (self.restore_hot(id), hot) {
            (Ok(()), hot) => {
                if let Some(how) = hot {
                    tracing::warn!(layer = %id, %how, "a damaged hot copy was made anew");
                }
                Layer::open_hot(self, id)
            }
            (Err(StoreError::LayerMissing(id)), Some(how)) => {
                Err(StoreError::LayerDamaged { id, how })
            }
            (Err(StoreError::LayerDamaged { id, how: durable }), Some(hot)) => {
                let how = format!("{hot}; and of its durable copy, {durable}");
                Err(StoreError::LayerDamaged { id, how })
            }
            (Err(other), _) => Err(other),
        }
    }

    /// A hot layer whose pages are what was written: known, or found out now. One that is not yet
    /// durable has no checksum.
    fn checked(&self, layer: Layer) -> Result<Layer, StoreError> {
        let id = &layer.index.id;
        if self.known().is_good(id) {
            return Ok(layer);
        }
        let durable = self.durable_copy(id).ok().map(|(index, _)| index);
        // One that was made from a durable copy has the checksum itself.
        let wanted = durable.as_ref().map_or(layer.index.pages_crc32, |index| index.pages_crc32);
        if wanted.is_some() {
            let index = LayerIndex { pages_crc32: wanted, ..layer.index.clone() };
            let crc = checksum_runs(&layer.pages, &layer.index.stored)
                .map_err(|source| StoreError::file("read", self.hot_pages(id), source))?;
            if durable.is_some_and(|durable| durable != index) || wanted != Some(crc) {
                let how = "its hot pages do not match their checksum".to_owned();
                return Err(StoreError::LayerDamaged { id: id.clone(), how });
            }
        }
        self.known().note_good(id);
        Ok(layer)
    }

    /// Makes sure that the durable copy of a layer is good, reading all of it; one that is not is
    /// written anew from a good hot copy. Does nothing for a copy that this process has written or
    /// checked before.
    ///
    /// # Errors
    /// [`StoreError::LayerMissing`] or [`StoreError::LayerDamaged`] when it is not and cannot be
    /// made good.
    pub fn check_durable(&self, id: &LayerId) -> Result<(), StoreError> {
        if self.known().is_durable_good(id) {
            return Ok(());
        }
        let found = self.durable_copy(id).and_then(|(index, _)| {
            let path = self.durable_pages(id);
            let crc = File::open(&path).and_then(|file| checksum_runs(&file, &index.stored));
            let crc = crc.map_err(|source| StoreError::file("read", &path, source))?;
            match index.pages_crc32 == Some(crc) {
                true => Ok(()),
                false => Err(pages_damaged(id)),
            }
        });
        match found {
            Ok(()) => self.known().note_durable_good(id),
            Err(error @ (StoreError::LayerDamaged { .. } | StoreError::LayerMissing(_))) => {
                // Only a hot copy that is known to be good may take the place of a checksum.
                let hot = Layer::open_hot(self, id).ok().filter(|_| self.known().is_good(id));
                let Some(hot) = hot else { return Err(error) };
                tracing::warn!(layer = %id, %error, "a damaged durable copy is written anew");
                self.write_durable_layer(hot)?;
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }

    /// Makes the hot copy of a layer from its durable one. Children that have the former hot copy
    /// mapped keep that: the new one takes its name, not its place.
    fn restore_hot(&self, id: &LayerId) -> Result<(), StoreError> {
        let (index, bytes) = self.durable_copy(id)?;
        self.known().forget_good(id);
        let hot = self.hot_pages(id);
        self.known().promise(self.hot(), &hot, index.stored_bytes())?;
        let restored = self.copy_to_hot(&index);
        self.known().keep_promise(&hot);
        restored?;
        // The index last: with it the layer counts as there.
        let hot = self.hot_index(id);
        put(&hot, |path| fs::write(path, &bytes))
            .map_err(|source| StoreError::file("write", &hot, source))?;
        self.known().note_good(id);
        self.known().note_durable_good(id);
        Ok(())
    }

    fn copy_to_hot(&self, index: &LayerIndex) -> Result<(), StoreError> {
        let id = &index.id;
        let durable = self.durable_pages(id);
        let pages =
            File::open(&durable).map_err(|source| StoreError::file("open", &durable, source))?;
        let mut crc = None;
        let copy = |path: &Path| {
            let file = fresh(path)?;
            file.set_len(index.memory.get())?;
            reserve(&file, &index.stored)?;
            let found = *crc.insert(copy_runs(&pages, &file, &index.stored)?);
            match index.pages_crc32 == Some(found) {
                true => fs::set_permissions(path, fs::Permissions::from_mode(0o400)),
                false => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        put(&self.hot_pages(id), copy).map_err(|source| match crc {
            Some(crc) if index.pages_crc32 != Some(crc) => pages_damaged(id),
            _ => StoreError::file("make a hot copy from", &durable, source),
        })
    }

    /// The index of a layer's durable copy, with the bytes of its file, if that copy is whole as
    /// far as can be told without reading its pages.
    pub(crate) fn durable_copy(&self, id: &LayerId) -> Result<(LayerIndex, Vec<u8>), StoreError> {
        let (index, bytes) = read_index(&self.durable_index(id), id)?;
        let path = self.durable_pages(id);
        let length = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::LayerMissing(id.clone()));
            }
            Err(source) => return Err(StoreError::file("ask for the size of", path, source)),
        };
        if length != index.memory.get() {
            let how = format!("it has {length} bytes instead of {}", index.memory.get());
            return Err(StoreError::LayerDamaged { id: id.clone(), how });
        }
        Ok((index, bytes))
    }
}

fn pages_damaged(id: &LayerId) -> StoreError {
    let how = "its pages do not match their checksum".to_owned();
    StoreError::LayerDamaged { id: id.clone(), how }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    use forkd_types::{ByteCount, PageIndex, PageRun};

    use super::*;
    use crate::LayerWriter;
    use crate::files::temporary_store;

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
        id: LayerId,
        /// What its pages held when it was sealed.
        sealed: Vec<u8>,
        /// Of the device state.
        checksum: FileChecksum,
    }

    fn published() -> Store {
        let (files, directories) = temporary_store();
        let size = ByteCount::from_mib(8);
        let writer = LayerWriter::create(&files, size, ByteCount::ZERO).unwrap();
        let file = writer.file().unwrap();
        let runs = vec![PageRun::new(3, 1), PageRun::new(100, 300)];
        for run in &runs {
            for page in run.start.get()..run.end().get() {
                let byte = page.to_le_bytes()[0] | 1;
                LayerWriter::write_pages(&file, PageIndex::new(page), &[byte; 4096]).unwrap();
            }
        }
        let below = LayerId::random();
        let layer = writer.seal_delta(&below, runs, vec![PageRun::new(5, 2)]).unwrap();
        let id = layer.index.id;
        fs::write(files.hot_device_state(&id), b"devices").unwrap();
        let checksum = files.checksum_device_state(&id).unwrap();
        files.publish_layer(&id).unwrap();
        files.publish_device_state(&id, &checksum).unwrap();
        let sealed = fs::read(files.hot_pages(&id)).unwrap();
        Store { _directories: directories, files, id, sealed, checksum }
    }

    impl Store {
        fn hot(&self) -> [PathBuf; 3] {
            let (files, id) = (&self.files, &self.id);
            [files.hot_pages(id), files.hot_index(id), files.hot_device_state(id)]
        }

        fn durable(&self) -> [PathBuf; 3] {
            let (files, id) = (&self.files, &self.id);
            [files.durable_pages(id), files.durable_index(id), files.durable_device_state(id)]
        }

        fn assert_good(&self, what: &str) {
            let layer = self.files.open_layer(&self.id).unwrap();
            assert_eq!(layer.index.zero, [PageRun::new(5, 2)], "{what}");
            assert!(fs::read(self.files.hot_pages(&self.id)).unwrap() == self.sealed, "{what}");
            let device = self.files.require_device_state(&self.id, Some(&self.checksum)).unwrap();
            assert_eq!(fs::read(device).unwrap(), b"devices", "{what}");
        }

        /// The layer must be refused by name, and nothing half made be left.
        fn refused(&self, what: &str) -> StoreError {
            let error = self.files.open_layer(&self.id).unwrap_err();
            assert!(error.to_string().contains(self.id.as_str()), "{what}: {error}");
            let names = fs::read_dir(self.files.hot().join("layers")).unwrap();
            let mut names = names.map(|entry| entry.unwrap().path());
            assert!(!names.any(|path| path.extension().is_some_and(|e| e == "new")), "{what}");
            error
        }
    }

    fn remove(path: &Path) {
        fs::remove_file(path).unwrap();
    }

    fn open(path: &Path) -> File {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    fn truncate(path: &Path) {
        open(path).set_len(40).unwrap();
    }

    /// Another layer's index, valid in itself, under this layer's name.
    fn exchange(store: &Store, path: &Path) {
        let other = LayerIndex {
            id: LayerId::random(),
            ..Layer::open_hot(&store.files, &store.id).unwrap().index
        };
        fs::write(path, other.encode()).unwrap();
    }

    #[test]
    fn a_published_layer_comes_back_after_the_hot_copy_is_lost() {
        let store = published();
        store.hot().iter().for_each(|path| remove(path));
        store.assert_good("all hot files are gone");
    }

    #[test]
    fn a_damaged_hot_copy_is_made_anew_from_the_durable_one() {
        type Damage = fn(&Store);
        let damages: [(&str, Damage); 7] = [
            ("no pages", |store| remove(&store.hot()[0])),
            ("no index", |store| remove(&store.hot()[1])),
            ("no device state", |store| remove(&store.hot()[2])),
            ("truncated pages", |store| truncate(&store.hot()[0])),
            ("truncated index", |store| truncate(&store.hot()[1])),
            ("a flipped bit in the index", |store| {
                open(&store.hot()[1]).write_all_at(&[0x55], 81).unwrap();
            }),
            ("the index of another layer", |store| exchange(store, &store.hot()[1])),
        ];
        for (what, damage) in damages {
            let store = published();
            damage(&store);
            store.assert_good(what);
        }
    }

    #[test]
    fn a_child_that_maps_the_damaged_hot_copy_keeps_what_it_has() {
        let store = published();
        let mapped = Layer::open_hot(&store.files, &store.id).unwrap().pages;
        truncate(&store.hot()[1]);
        store.assert_good("the index was damaged");
        let now = File::open(&store.hot()[0]).unwrap().metadata().unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_ne!(mapped.metadata().unwrap().ino(), now.ino(), "made anew in its place");
        let mut page = [0; 4096];
        mapped.read_exact_at(&mut page, 100 * 4096).unwrap();
        assert_eq!(page[..], store.sealed[100 * 4096..101 * 4096]);
    }

    #[test]
    fn a_damaged_durable_copy_is_written_anew_while_the_hot_one_is_good() {
        type Damage = fn(&Store);
        let damages: [(&str, Damage); 5] = [
            ("no pages", |store| remove(&store.durable()[0])),
            ("no index", |store| remove(&store.durable()[1])),
            ("truncated pages", |store| truncate(&store.durable()[0])),
            ("truncated index", |store| truncate(&store.durable()[1])),
            ("the index of another layer", |store| exchange(store, &store.durable()[1])),
        ];
        for (what, damage) in damages {
            let store = published();
            damage(&store);
            store.assert_good(what);
            store.files.publish_layer(&store.id).unwrap();
            store.hot().iter().for_each(|path| remove(path));
            store.assert_good(what);
        }
    }

    #[test]
    fn a_layer_without_a_good_copy_is_refused_by_name() {
        type Damage = fn(&Store);
        let damages: [(&str, &str, Damage); 6] = [
            ("no pages", "missing", |store| remove(&store.durable()[0])),
            ("no index", "missing", |store| remove(&store.durable()[1])),
            ("truncated pages", "40 bytes", |store| truncate(&store.durable()[0])),
            ("truncated index", "cut short", |store| truncate(&store.durable()[1])),
            ("a flipped bit in the pages", "checksum", |store| {
                open(&store.durable()[0]).write_all_at(&[0xFE], 200 * 4096 + 17).unwrap();
            }),
            ("the index of another layer", "another layer", |store| {
                exchange(store, &store.durable()[1]);
            }),
        ];
        for (what, word, damage) in damages {
            let store = published();
            damage(&store);
            store.hot().iter().for_each(|path| remove(path));
            let error = store.refused(what).to_string();
            assert!(error.contains(word), "{what}: {error}");
        }
    }

    #[test]
    fn two_damaged_copies_are_both_told() {
        let store = published();
        truncate(&store.hot()[1]);
        truncate(&store.durable()[0]);
        let error = store.refused("both").to_string();
        assert!(error.contains("cut short") && error.contains("40 bytes"), "{error}");
        remove(&store.durable()[1]);
        let error = store.refused("one is missing").to_string();
        assert!(error.contains("cut short"), "{error}");
    }

    #[test]
    fn a_layer_that_is_nowhere_is_missing() {
        let store = published();
        let nowhere = LayerId::random();
        let error = store.files.open_layer(&nowhere).unwrap_err();
        assert!(matches!(error, StoreError::LayerMissing(id) if id == nowhere));
    }

    /// The same directories as another process finds them, which has to read to know.
    fn reopened(store: &Store) -> StoreFiles {
        StoreFiles::open(store.files.state(), store.files.hot()).unwrap()
    }

    #[test]
    fn flipped_bits_in_a_hot_copy_are_found_by_the_next_process_and_healed() {
        let store = published();
        open(&store.hot()[0]).write_all_at(&[0xFE], 200 * 4096 + 17).unwrap();
        let next = Store { files: reopened(&store), ..store };
        next.assert_good("a flipped bit in the hot pages");
    }

    #[test]
    fn flipped_bits_in_a_durable_copy_are_found_when_it_is_checked_and_healed() {
        let store = published();
        let path = &store.durable()[0];
        let good = fs::read(path).unwrap();
        open(path).write_all_at(&[0xFE], 200 * 4096 + 17).unwrap();
        let files = reopened(&store);
        let error = files.check_durable(&store.id).unwrap_err();
        assert!(error.is_damage(), "the hot copy is not known to be good: {error}");
        files.open_layer(&store.id).unwrap();
        files.check_durable(&store.id).unwrap();
        assert!(fs::read(path).unwrap() == good);
    }
}
