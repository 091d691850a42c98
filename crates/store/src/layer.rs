//! Layers in the hot directory: written once, then immutable.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use forkd_types::{ByteCount, LayerId, PAGE_BYTES, PageIndex, PageRun, limit};
use rustix::fs::SeekFrom;

use crate::disk::put;
use crate::failpoint::{Failpoint, reach};
use crate::private::private_file;
use crate::{LayerIndex, LayerKind, StoreError, StoreFiles};

/// A layer being written. Dropped before it is sealed, it leaves nothing.
#[derive(Debug)]
pub struct LayerWriter {
    id: LayerId,
    files: StoreFiles,
    file: File,
    memory: ByteCount,
    sealed: bool,
}

/// A sealed layer, open for mapping.
#[derive(Debug)]
pub struct Layer {
    /// Which pages it has.
    pub index: LayerIndex,
    /// Its pages, read-only; offset = position in guest RAM.
    pub pages: File,
}

impl LayerWriter {
    /// Begins a layer of a guest with `memory` bytes of RAM, of which it will hold about
    /// `expected`.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] when that does not fit into the hot directory.
    pub fn create(
        files: &StoreFiles,
        memory: ByteCount,
        expected: ByteCount,
    ) -> Result<Self, StoreError> {
        let id = LayerId::random();
        let path = files.hot_pages(&id);
        files.known().promise(files.hot(), &path, expected)?;
        let file = reach(Failpoint::Writing(&path))
            .and_then(|()| {
                private_file(OpenOptions::new().read(true).write(true).create_new(true), &path)
            })
            .and_then(|file| file.set_len(memory.get()).map(|()| file));
        let file = file.map_err(|source| {
            files.remove_layer(&id);
            files.known().keep_promise(&path);
            StoreError::file("create layer", &path, source)
        })?;
        Ok(Self { id, files: files.clone(), file, memory, sealed: false })
    }

    /// The layer's id.
    #[must_use]
    pub fn id(&self) -> &LayerId {
        &self.id
    }

    /// The file that a template's VM uses as its RAM.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.files.hot_pages(&self.id)
    }

    /// A handle for writing pages from another thread.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Stores consecutive pages in `file`, a handle from [`Self::file`].
    ///
    /// # Errors
    /// When the hot directory is full.
    pub fn write_pages(file: &File, start: PageIndex, data: &[u8]) -> io::Result<()> {
        file.write_all_at(data, start.byte_offset())
    }

    /// Makes the layer immutable, with the pages that were written: what differs from a chain whose
    /// top is the layer `below`.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub fn seal_delta(
        self,
        below: &LayerId,
        stored: Vec<PageRun>,
        zero: Vec<PageRun>,
    ) -> Result<Layer, StoreError> {
        self.seal(Some(below.clone()), stored, zero)
    }

    /// Makes the layer immutable as a base: what was not written is zero. Holes of fewer than
    /// [`limit::HOLE_PAGES_MIN`] pages are filled: each would cost every child a mapping.
    ///
    /// # Errors
    /// When the index cannot be written, or the hot directory is full.
    pub fn seal_base(self) -> Result<Layer, StoreError> {
        let stored = data_runs(&self.file).and_then(|runs| fill_small_holes(&self.file, &runs));
        let stored =
            stored.map_err(|source| StoreError::file("find the pages of", self.path(), source))?;
        self.seal(None, stored, Vec::new())
    }

    fn seal(
        mut self,
        below: Option<LayerId>,
        stored: Vec<PageRun>,
        zero: Vec<PageRun>,
    ) -> Result<Layer, StoreError> {
        let index = LayerIndex {
            id: self.id.clone(),
            kind: if below.is_some() { LayerKind::Delta } else { LayerKind::Base },
            below,
            memory: self.memory,
            stored,
            zero,
            pages_crc32: None,
        };
        let path = self.path();
        // The RAM of a template belonged to its VMM.
        forkd_sys::file::take_back(&self.file)
            .map_err(|source| StoreError::file("seal", &path, source))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400))
            .map_err(|source| StoreError::file("seal", &path, source))?;
        // The index last: with it the layer counts as there.
        let index_path = self.files.hot_index(&self.id);
        put(&index_path, |path| fs::write(path, index.encode()))
            .map_err(|source| StoreError::file("write", &index_path, source))?;
        self.files.known().note_good(&self.id);
        self.files.known().note_use(&self.id);
        self.files.known().keep_promise(&path);
        self.sealed = true;
        Ok(Layer { index, pages: open_pages(&path)? })
    }
}

impl Drop for LayerWriter {
    fn drop(&mut self) {
        if !self.sealed {
            self.files.remove_layer(&self.id);
            self.files.known().keep_promise(&self.path());
        }
    }
}

impl Layer {
    /// Opens the hot copy of a layer.
    ///
    /// # Errors
    /// [`StoreError::LayerMissing`] when there is none, [`StoreError::LayerDamaged`] when it is not
    /// what its index says.
    pub fn open_hot(files: &StoreFiles, id: &LayerId) -> Result<Self, StoreError> {
        let (index, _) = read_index(&files.hot_index(id), id)?;
        let path = files.hot_pages(id);
        let pages = match open_pages(&path) {
            Err(StoreError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::LayerMissing(id.clone()));
            }
            other => other?,
        };
        let length = pages
            .metadata()
            .map_err(|source| StoreError::file("ask for the size of", &path, source))?
            .len();
        if length != index.memory.get() {
            let how = format!("it has {length} bytes instead of {}", index.memory.get());
            return Err(StoreError::LayerDamaged { id: id.clone(), how });
        }
        Ok(Self { index, pages })
    }
}

/// The index at `path`, which must be that of layer `id`, with the bytes of its file.
pub(crate) fn read_index(path: &Path, id: &LayerId) -> Result<(LayerIndex, Vec<u8>), StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok((LayerIndex::decode(id, &bytes)?, bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(StoreError::LayerMissing(id.clone()))
        }
        Err(source) => Err(StoreError::file("read", path, source)),
    }
}

pub(crate) fn open_pages(path: &Path) -> Result<File, StoreError> {
    File::open(path).map_err(|source| StoreError::file("open layer", path, source))
}

/// The ranges of a sparse file that hold data, in pages.
pub(crate) fn data_runs(file: &File) -> io::Result<Vec<PageRun>> {
    let length = file.metadata()?.len();
    let mut runs = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // No data behind `at`.
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        let (first, last) = (start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        runs.push(PageRun::new(first, last - first));
        at = end;
    }
    Ok(runs)
}

/// Writes zeros between `runs`, ascending, that are close together. Returns what then has data.
fn fill_small_holes(file: &File, runs: &[PageRun]) -> io::Result<Vec<PageRun>> {
    let mut filled: Vec<PageRun> = Vec::with_capacity(runs.len());
    for run in runs {
        let (start, end) = (run.start.get(), run.end().get());
        match filled.last_mut() {
            Some(last) if start - last.end().get() < limit::HOLE_PAGES_MIN => {
                let hole = PageRun::new(last.end().get(), start - last.end().get());
                file.write_all_at(&vec![0; hole.bytes().as_usize()], hole.start.byte_offset())?;
                *last = PageRun::new(last.start.get(), end - last.start.get());
            }
            _ => filled.push(*run),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, tempfile::TempDir, StoreFiles) {
        let state = tempfile::tempdir().unwrap();
        let hot = tempfile::tempdir_in("/dev/shm").unwrap();
        let files = StoreFiles::open(state.path(), hot.path()).unwrap();
        (state, hot, files)
    }

    #[test]
    fn a_dropped_writer_leaves_nothing() {
        let (_state, hot, files) = files();
        let size = ByteCount::from_mib(1);
        drop(LayerWriter::create(&files, size, ByteCount::ZERO).unwrap());
        assert_eq!(fs::read_dir(hot.path().join("layers")).unwrap().count(), 0);
    }

    #[test]
    fn a_base_lists_the_pages_that_were_written_and_opens_again() {
        let (_state, _hot, files) = files();
        let size = ByteCount::from_mib(1);
        let writer = LayerWriter::create(&files, size, ByteCount::ZERO).unwrap();
        let file = writer.file().unwrap();
        LayerWriter::write_pages(&file, PageIndex::new(7), &[1; 8192]).unwrap();
        let sealed = writer.seal_base().unwrap();
        assert_eq!(sealed.index.stored, [PageRun::new(7, 2)]);
        let opened = Layer::open_hot(&files, &sealed.index.id).unwrap();
        assert_eq!(opened.index, sealed.index);
    }

    #[test]
    fn small_holes_of_a_base_are_filled_and_large_ones_are_not() {
        let (_state, _hot, files) = files();
        let size = ByteCount::from_mib(1);
        let writer = LayerWriter::create(&files, size, ByteCount::ZERO).unwrap();
        let file = writer.file().unwrap();
        for start in [40, 71, 104] {
            LayerWriter::write_pages(&file, PageIndex::new(start), &[1; 4096]).unwrap();
        }
        let sealed = writer.seal_base().unwrap();
        assert_eq!(sealed.index.stored, [PageRun::new(40, 32), PageRun::new(104, 1)]);
        assert_eq!(data_runs(&sealed.pages).unwrap(), sealed.index.stored);
        let mut page = [9; 4096];
        sealed.pages.read_exact_at(&mut page, 50 * PAGE_BYTES).unwrap();
        assert_eq!(page, [0; 4096]);
    }

    #[test]
    fn a_layer_without_its_pages_is_missing_and_a_short_one_damaged() {
        let (_state, _hot, files) = files();
        let size = ByteCount::from_mib(1);
        let layer =
            LayerWriter::create(&files, size, ByteCount::ZERO).unwrap().seal_base().unwrap();
        let (id, path) = (layer.index.id.clone(), files.hot_pages(&layer.index.id));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = Layer::open_hot(&files, &id).unwrap_err();
        assert!(matches!(error, StoreError::LayerDamaged { .. }), "{error}");
        fs::remove_file(&path).unwrap();
        let error = Layer::open_hot(&files, &id).unwrap_err();
        assert!(matches!(error, StoreError::LayerMissing(missing) if missing == id));
    }

    #[test]
    fn more_than_the_hot_directory_holds_is_refused_with_both_figures() {
        let (_state, _hot, files) = files();
        let huge = ByteCount::new(1 << 60);
        let error = LayerWriter::create(&files, ByteCount::from_mib(1), huge).unwrap_err();
        assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
    }
}
