//! Between the hot and the durable copy of a layer.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forkd_types::{ByteCount, LayerId, PageRun};

use crate::layer::{Layer, read_index};
use crate::{StoreError, StoreFiles, space};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

impl StoreFiles {
    /// Writes the durable copy of a hot layer and of the device state that belongs to it: when this
    /// returns, both survive a crash of the host. Doing it again does no harm.
    ///
    /// # Errors
    /// When the state directory is full or fails; what was written is removed.
    pub fn publish_layer(&self, id: &LayerId) -> Result<(), StoreError> {
        if self.durable_index(id).exists() {
            return Ok(());
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

    /// Makes a frozen overlay durable: the VMM wrote it without flushing.
    ///
    /// # Errors
    /// When the file is missing or the disk fails.
    pub fn publish_overlay(&self, id: &LayerId) -> Result<(), StoreError> {
        let path = self.overlay(id);
        File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(|source| StoreError::file("make durable", &path, source))?;
        let directory = self.state().join("overlays");
        sync_directory(&directory)
    }

    /// Makes the hot copy of a layer from its durable one, where it is missing: after a reboot.
    ///
    /// # Errors
    /// [`StoreError::LayerMissing`] when there is no durable copy either, or
    /// [`StoreError::LayerDamaged`] when it does not match its checksums.
    pub fn restore_hot(&self, id: &LayerId) -> Result<(), StoreError> {
        if self.hot_index(id).exists() {
            return Ok(());
        }
        let (index, bytes) = read_index(&self.durable_index(id), id)?;
        space::require(self.hot(), index.stored_bytes())?;
        let pages_path = self.durable_pages(id);
        let pages = File::open(&pages_path)
            .map_err(|source| StoreError::file("open", &pages_path, source))?;
        let hot = self.hot_pages(id);
        let written = fresh(&hot).and_then(|file| {
            file.set_len(index.memory.get())?;
            copy_runs(&pages, &file, &index.stored)
        });
        let crc = written.map_err(|source| StoreError::file("write", &hot, source))?;
        if index.pages_crc32 != Some(crc) {
            self.remove_hot_copy(id);
            let how = "its pages do not match their checksum".to_owned();
            return Err(StoreError::LayerDamaged { id: id.clone(), how });
        }
        let device_state = self.durable_device_state(id);
        if device_state.exists() {
            fs::copy(&device_state, self.hot_device_state(id))
                .map_err(|source| StoreError::file("read", &device_state, source))?;
        }
        let hot_index = self.hot_index(id);
        fs::write(&hot_index, bytes).map_err(|source| StoreError::file("write", &hot_index, source))
    }

    fn remove_hot_copy(&self, id: &LayerId) {
        for path in [self.hot_pages(id), self.hot_index(id)] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove a damaged copy");
            }
        }
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

fn fresh(path: &Path) -> io::Result<File> {
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
    for run in runs {
        let (mut at, end) = (run.start.byte_offset(), run.end().byte_offset());
        while at < end {
            let length = ByteCount::new(end - at).as_usize().min(CHUNK_BYTES);
            let part = &mut buffer[..length];
            from.read_exact_at(part, at)?;
            hasher.update(part);
            to.write_all_at(part, at)?;
            at += length as u64;
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
        let layer = writer.seal_delta(runs, vec![PageRun::new(5, 2)]).unwrap();
        let id = layer.index.id;
        fs::write(files.hot_device_state(&id), b"devices").unwrap();
        files.publish_layer(&id).unwrap();
        Store { _state: state, _hot: hot, files, id }
    }

    fn lose_hot_copy(store: &Store) {
        let (files, id) = (&store.files, &store.id);
        for path in [files.hot_pages(id), files.hot_index(id), files.hot_device_state(id)] {
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_published_layer_comes_back_after_the_hot_copy_is_lost() {
        let store = published();
        let before = fs::read(store.files.hot_pages(&store.id)).unwrap();
        lose_hot_copy(&store);
        store.files.restore_hot(&store.id).unwrap();
        assert_eq!(fs::read(store.files.hot_pages(&store.id)).unwrap(), before);
        assert_eq!(fs::read(store.files.hot_device_state(&store.id)).unwrap(), b"devices");
        let layer = Layer::open_hot(&store.files, &store.id).unwrap();
        assert_eq!(layer.index.zero, [PageRun::new(5, 2)]);
    }

    #[test]
    fn one_flipped_bit_in_the_durable_pages_is_refused_by_name() {
        let store = published();
        lose_hot_copy(&store);
        let path = store.files.durable_pages(&store.id);
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0xFF], 200 * 4096 + 17).unwrap();
        let error = store.files.restore_hot(&store.id).unwrap_err();
        assert!(error.to_string().contains(store.id.as_str()), "{error}");
        assert!(!store.files.hot_index(&store.id).exists(), "nothing usable is left behind");
    }

    #[test]
    fn a_layer_that_is_nowhere_is_missing() {
        let store = published();
        let nowhere = LayerId::random();
        let error = store.files.restore_hot(&nowhere).unwrap_err();
        assert!(matches!(error, StoreError::LayerMissing(id) if id == nowhere));
    }
}
