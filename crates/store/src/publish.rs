//! Between the hot and the durable copy of a layer.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_sys::schedule::RunQueue;
use forkd_types::{ByteCount, LayerId, PageRun};

use crate::layer::{Layer, read_index};
use crate::{LayerIndex, StoreError, StoreFiles, space};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 256 << 10;
/// Rest between two of them where others want the processor: this work is never urgent, and guests
/// should not lose a whole time slice to it.
const REST: Duration = Duration::from_micros(200);

impl StoreFiles {
    /// Writes the durable copy of a hot layer and of the device state that belongs to it: when this
    /// returns, both survive a crash of the host. Doing it again does no harm: a copy that is there
    /// is looked at without reading its pages, and written anew when it is damaged.
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
        let layer = Layer::open_hot(self, id)?;
        let mut index = layer.index;
        let crc = self.write_durable(&self.durable_pages(id), |file| {
            file.set_len(index.memory.get())?;
            // All space first: a file that grows in small steps under load ends up scattered.
            reserve(file, &index.stored);
            copy_runs(&layer.pages, file, &index.stored)
        })?;
        index.pages_crc32 = Some(crc);
        let device_state = self.hot_device_state(id);
        if device_state.exists() {
            let bytes = fs::read(&device_state)
                .map_err(|source| StoreError::file("read", &device_state, source))?;
            let path = self.durable_device_state(id);
            self.write_durable(&path, |file| file.write_all_at(&bytes, 0))?;
        }
        // The index last: with it the layer counts as there.
        let bytes = index.encode();
        self.write_durable(&self.durable_index(id), |file| file.write_all_at(&bytes, 0))
    }

    /// Makes a frozen overlay durable: the VMM wrote it without flushing. Returns its length.
    ///
    /// # Errors
    /// When the file is missing or the disk fails.
    pub fn publish_overlay(&self, id: &LayerId) -> Result<ByteCount, StoreError> {
        let path = self.overlay(id);
        let length = File::open(&path)
            .and_then(|file| file.sync_all().and_then(|()| file.metadata()))
            .map_err(|source| StoreError::file("make durable", &path, source))?
            .len();
        sync_directory(&self.state().join("overlays"))?;
        Ok(ByteCount::new(length))
    }

    /// Opens a layer for mapping. A hot copy that is missing or damaged is made anew from the
    /// durable one: after a reboot all of them are missing.
    ///
    /// # Errors
    /// [`StoreError::LayerMissing`] when there is no copy, [`StoreError::LayerDamaged`] when there
    /// is no good one.
    pub fn open_layer(&self, id: &LayerId) -> Result<Layer, StoreError> {
        let hot = match Layer::open_hot(self, id) {
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

    /// Where the device state that belongs to a layer is, if there is any. One that is missing in
    /// the hot directory is copied from the durable one.
    ///
    /// # Errors
    /// When the copy cannot be made.
    pub fn require_device_state(&self, id: &LayerId) -> Result<Option<PathBuf>, StoreError> {
        let hot = self.hot_device_state(id);
        let durable = self.durable_device_state(id);
        if !hot.exists() {
            if !durable.exists() {
                return Ok(None);
            }
            let copy = |path: &Path| fs::copy(&durable, path).map(drop);
            put(&hot, copy).map_err(|source| StoreError::file("copy to", &hot, source))?;
        }
        Ok(Some(hot))
    }

    /// Makes the hot copy of a layer from its durable one. Children that have the former hot copy
    /// mapped keep that: the new one takes its name, not its place.
    fn restore_hot(&self, id: &LayerId) -> Result<(), StoreError> {
        let (index, bytes) = self.durable_copy(id)?;
        space::require(self.hot(), index.stored_bytes())?;
        let durable = self.durable_pages(id);
        let pages =
            File::open(&durable).map_err(|source| StoreError::file("open", &durable, source))?;
        let hot = self.hot_pages(id);
        let mut crc = None;
        let copy = |path: &Path| {
            let file = fresh(path)?;
            file.set_len(index.memory.get())?;
            let found = *crc.insert(copy_runs(&pages, &file, &index.stored)?);
            match index.pages_crc32 == Some(found) {
                true => fs::set_permissions(path, fs::Permissions::from_mode(0o400)),
                false => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        put(&hot, copy).map_err(|source| match crc {
            Some(crc) if index.pages_crc32 != Some(crc) => {
                let how = "its pages do not match their checksum".to_owned();
                StoreError::LayerDamaged { id: id.clone(), how }
            }
            _ => StoreError::file("make a hot copy from", &durable, source),
        })?;
        self.require_device_state(id)?;
        // The index last: with it the layer counts as there.
        let hot = self.hot_index(id);
        put(&hot, |path| fs::write(path, &bytes))
            .map_err(|source| StoreError::file("write", &hot, source))
    }

    /// The index of a layer's durable copy, with the bytes of its file, if that copy is whole as
    /// far as can be told without reading its pages.
    fn durable_copy(&self, id: &LayerId) -> Result<(LayerIndex, Vec<u8>), StoreError> {
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

    /// Writes a file under a temporary name, makes it durable, and gives it its name.
    fn write_durable<T>(
        &self,
        path: &Path,
        write: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T, StoreError> {
        let unfinished = path.with_extension("new");
        let failed = |source| StoreError::file("write", path, source);
        let written = fresh(&unfinished).and_then(|file| {
            let value = write(&file)?;
            file.sync_all()?;
            fs::rename(&unfinished, path)?;
            Ok(value)
        });
        if written.is_err() {
            // The error that matters is the first one; a leftover is removed at the next start.
            fs::remove_file(&unfinished).ok();
        }
        let value = written.map_err(failed)?;
        sync_directory(&self.durable_directory())?;
        Ok(value)
    }
}

/// Makes a file under a name of its own and then gives it its name, so that whoever opens `path`
/// finds all of it or what was there before. Not durable.
pub(crate) fn put(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.new", LayerId::random()));
    let written = write(&unfinished).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The error that matters is the first one; a leftover is removed at the next start.
        fs::remove_file(&unfinished).ok();
    }
    written
}

pub(crate) fn fresh(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| StoreError::file("make durable", path, source))
}

/// Allocates the blocks of all runs. Not every file system can; then writing does it.
fn reserve(file: &File, runs: &[PageRun]) {
    for run in runs {
        let flags = rustix::fs::FallocateFlags::empty();
        let (start, length) = (run.start.byte_offset(), run.bytes().get());
        if let Err(errno) = rustix::fs::fallocate(file, flags, start, length) {
            tracing::debug!(%errno, "space for a layer cannot be reserved");
            return;
        }
    }
}

/// Copies runs to the same places and returns the checksum of their pages.
pub(crate) fn copy_runs(from: &File, to: &File, runs: &[PageRun]) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let (others, mut since_rest) = (RunQueue::open(), 0);
    for run in runs {
        let (mut at, end) = (run.start.byte_offset(), run.end().byte_offset());
        while at < end {
            let length = ByteCount::new(end - at).as_usize().min(CHUNK_BYTES);
            let part = &mut buffer[..length];
            from.read_exact_at(part, at)?;
            hasher.update(part);
            to.write_all_at(part, at)?;
            at += length as u64;
            since_rest += length;
            if since_rest >= CHUNK_BYTES {
                since_rest = 0;
                if others.is_crowded() {
                    std::thread::sleep(REST);
                }
            }
        }
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use forkd_types::PageIndex;

    use super::*;
    use crate::LayerWriter;

    struct Store {
        _state: tempfile::TempDir,
        _hot: tempfile::TempDir,
        files: StoreFiles,
        id: LayerId,
        /// What its pages held when it was sealed.
        sealed: Vec<u8>,
    }

    fn published() -> Store {
        let state = tempfile::tempdir().unwrap();
        let hot = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = StoreFiles::open(state.path(), hot.path()).unwrap();
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
        files.publish_layer(&id).unwrap();
        let sealed = fs::read(files.hot_pages(&id)).unwrap();
        Store { _state: state, _hot: hot, files, id, sealed }
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
            let device = self.files.require_device_state(&self.id).unwrap().unwrap();
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
}
