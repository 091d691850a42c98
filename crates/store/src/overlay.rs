//! Disk overlays: qcow2 files that hold what differs from what is below.
//!
//! A blank overlay is made once for each disk size with `qemu-img` and copied from then on: a copy
//! takes well under a millisecond, a run of `qemu-img` ten. It names no backing file: who
//! reads an overlay is told what lies below. A VMM may write that name into it all the same.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_types::{ByteCount, OverlayId};
use serde_json::{Value, json};

use crate::disk::fresh;
use crate::failpoint::{Failpoint, reach};
use crate::{Qcow2Header, StoreError, StoreFiles, space};

impl StoreFiles {
    /// A new blank overlay for a disk of `disk` bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create_overlay(&self, disk: ByteCount) -> Result<OverlayId, StoreError> {
        let blank = self.blank_overlay(disk)?;
        let id = OverlayId::random();
        let path = self.overlay(&id);
        let copied = reach(Failpoint::Writing(&path))
            .and_then(|()| fs::copy(&blank, &path))
            .and_then(|_| reach(Failpoint::Written(&path)));
        copied.map_err(|source| {
            self.remove_overlay(&id);
            StoreError::file("create disk overlay", &path, source)
        })?;
        Ok(id)
    }

    /// A new overlay over the base image at `base` that shows what `overlays`, frozen and lowest
    /// first, show above it. They stay as they are.
    ///
    /// One overlay after the other is copied into the new one, each as if it lay directly over the
    /// base: `qemu-img` then copies just what that overlay itself holds, zeros included. Given the
    /// whole chain at once it would take the uppermost overlay's clusters alone.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], or when a file is missing or `qemu-img` fails; nothing is left.
    pub fn merge_overlays(
        &self,
        base: &Path,
        disk: ByteCount,
        overlays: &[OverlayId],
        copier: &dyn CopyOverlay,
    ) -> Result<OverlayId, StoreError> {
        let length = |id: &OverlayId| {
            let path = self.overlay(id);
            let found = fs::metadata(&path);
            found.map_err(|source| StoreError::file("read disk overlay", &path, source))
        };
        let lengths = overlays.iter().map(|id| Ok(ByteCount::new(length(id)?.len())));
        let expected: ByteCount =
            lengths.collect::<Result<Vec<_>, StoreError>>()?.into_iter().sum();
        space::require(self.state(), expected)?;
        let merged = self.create_overlay(disk)?;
        for id in overlays {
            let (from, to) = (self.overlay(id), self.overlay(&merged));
            let copy = OverlayCopy { base, from: &from, to: &to };
            if let Err(source) = copier.copy(&copy) {
                self.remove_overlay(&merged);
                return Err(StoreError::file("merge disk overlay", from, source));
            }
        }
        Ok(merged)
    }

    fn blank_overlay(&self, disk: ByteCount) -> Result<PathBuf, StoreError> {
        let path = self.state().join("overlays").join(format!("blank-{}.qcow2", disk.get()));
        if path.exists() {
            return Ok(path);
        }
        // Under a name of its own first: two may be made at the same time, and a torn one must
        // never be copied.
        let unfinished = path.with_extension(format!("{}.new", OverlayId::random()));
        let failed = |source| StoreError::file("create with qemu-img", &unfinished, source);
        let output = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&unfinished)
            .arg(disk.get().to_string())
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            // It may not even have begun.
            fs::remove_file(&unfinished).ok();
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(io::Error::other(words)));
        }
        // Flushed: a blank that a crash of the host has torn would be copied for ever.
        fs::File::open(&unfinished)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|source| StoreError::file("create disk overlay", &path, source))?;
        Ok(path)
    }
}

/// An overlay that comes from elsewhere, being written. Dropped before it is sealed, it leaves
/// nothing.
#[derive(Debug)]
pub struct OverlayWriter {
    id: OverlayId,
    files: StoreFiles,
    file: fs::File,
    sealed: bool,
}

impl OverlayWriter {
    /// Begins an overlay whose file will have `bytes`.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] when they do not fit into the state directory.
    pub fn create(files: &StoreFiles, bytes: ByteCount) -> Result<Self, StoreError> {
        let id = OverlayId::random();
        let path = files.overlay(&id);
        files.known().promise(files.state(), &path, bytes)?;
        let file = reach(Failpoint::Writing(&path)).and_then(|()| fresh(&path));
        match file {
            Ok(file) => Ok(Self { id, files: files.clone(), file, sealed: false }),
            Err(source) => {
                files.known().keep_promise(&path);
                files.remove_overlay(&id);
                Err(StoreError::file("create disk overlay", path, source))
            }
        }
    }

    /// Writes a piece of the file.
    ///
    /// # Errors
    /// When the state directory is full.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|source| self.failed("write disk overlay", source))
    }

    /// As much of the file's beginning as its header may take.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn head(&self) -> Result<Vec<u8>, StoreError> {
        let mut head = vec![0; Qcow2Header::BYTES];
        let read = self.file.read_at(&mut head, 0);
        head.truncate(read.map_err(|source| self.failed("read disk overlay", source))?);
        Ok(head)
    }

    /// The file is complete.
    ///
    /// # Errors
    /// At a failpoint.
    pub fn seal(mut self) -> Result<OverlayId, StoreError> {
        let path = self.files.overlay(&self.id);
        reach(Failpoint::Written(&path))
            .map_err(|source| self.failed("create disk overlay", source))?;
        self.sealed = true;
        Ok(self.id.clone())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> StoreError {
        StoreError::file(what, self.files.overlay(&self.id), source)
    }
}

impl Drop for OverlayWriter {
    fn drop(&mut self) {
        self.files.known().keep_promise(&self.files.overlay(&self.id));
        if !self.sealed {
            self.files.remove_overlay(&self.id);
        }
    }
}

/// One overlay that is copied into another.
#[derive(Debug, Clone, Copy)]
pub struct OverlayCopy<'a> {
    /// The raw image below both.
    pub base: &'a Path,
    /// What is read.
    pub from: &'a Path,
    /// What is written, above what it holds already.
    pub to: &'a Path,
}

impl OverlayCopy<'_> {
    /// What `qemu-img` is to be called with.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        // `-n`: the target exists. `-B`: what the source does not hold is left to the base.
        let options = ["convert", "-q", "-n", "-O", "qcow2", "-F", "raw", "-B"].map(str::to_owned);
        let base = self.base.to_string_lossy().into_owned();
        let nodes = [base, node(self.from, self.base), node(self.to, self.base)];
        options.into_iter().chain(nodes).collect()
    }
}

/// Copies what an overlay itself holds, zeros included.
pub trait CopyOverlay {
    /// Copies; the target is half written when this fails.
    ///
    /// # Errors
    /// What `qemu-img` said.
    fn copy(&self, copy: &OverlayCopy<'_>) -> io::Result<()>;
}

/// With `qemu-img` as a plain process of this process's user.
#[derive(Debug, Clone, Copy)]
pub struct PlainQemuImg;

impl CopyOverlay for PlainQemuImg {
    fn copy(&self, copy: &OverlayCopy<'_>) -> io::Result<()> {
        let output = Command::new("qemu-img").args(copy.arguments()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// The overlay at `path` over the raw image at `base`, as a file name that `qemu-img` understands.
/// Locking is off for the reason it is off in the VMM: the store sees to it that an overlay has one
/// writer, and frozen ones none.
fn node(path: &Path, base: &Path) -> String {
    let file =
        |path: &Path| -> Value { json!({ "driver": "file", "filename": path, "locking": "off" }) };
    let backing = json!({ "driver": "raw", "file": file(base) });
    let node = json!({
        "driver": "qcow2", "file": file(path), "backing": backing, "discard": "unmap",
    });
    format!("json:{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    struct Disk {
        _state: tempfile::TempDir,
        _hot: tempfile::TempDir,
        files: StoreFiles,
        base: PathBuf,
        overlays: Vec<OverlayId>,
        /// What the guest would read.
        model: Vec<u8>,
    }

    impl Disk {
        /// 4 MiB, every 4 KiB of the base of another content, none of it zero.
        fn new() -> Self {
            let state = tempfile::tempdir().unwrap();
            let hot = tempfile::tempdir().unwrap();
            let files = StoreFiles::open(state.path(), hot.path()).unwrap();
            // A comma and a blank, because names are passed on a command line.
            let base = state.path().join("base, raw");
            let model: Vec<u8> =
                (0..4096 * KIB).map(|at| 100 + (at / 4096 % 100).to_le_bytes()[0]).collect();
            fs::write(&base, &model).unwrap();
            Self { _state: state, _hot: hot, files, base, overlays: Vec::new(), model }
        }

        /// A new overlay on top in which `writes` are made: first KiB, count, byte.
        fn push(&mut self, writes: &[(usize, usize, u8)]) {
            let id = self.files.create_overlay(ByteCount::from_mib(4)).unwrap();
            self.overlays.push(id);
            let mut io = Command::new("qemu-io");
            io.arg(self.chain());
            for (start, count, byte) in writes {
                io.arg("-c").arg(match byte {
                    0 => format!("write -z -u {start}k {count}k"),
                    byte => format!("write -P {byte} {start}k {count}k"),
                });
                self.model[start * KIB..(start + count) * KIB].fill(*byte);
            }
            let output = io.output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }

        /// The whole disk, with every overlay over the one below.
        fn chain(&self) -> String {
            let file = |path: &Path| json!({ "driver": "file", "filename": path });
            let mut node = json!({ "driver": "raw", "file": file(&self.base) });
            for id in &self.overlays {
                let file = file(&self.files.overlay(id));
                node = json!({ "driver": "qcow2", "file": file, "backing": node });
            }
            format!("json:{node}")
        }

        fn read(&self, node: String) -> Vec<u8> {
            let raw = self.files.state().join("raw");
            let mut convert = Command::new("qemu-img");
            convert.args(["convert", "-O", "raw"]).arg(node).arg(&raw);
            assert!(convert.status().unwrap().success());
            fs::read(raw).unwrap()
        }
    }

    #[test]
    fn merged_overlays_show_what_the_chain_shows_zeros_included() {
        let mut disk = Disk::new();
        disk.push(&[(0, 256, 1), (1024, 64, 1), (2000, 3, 1)]);
        // Zeros over the base, over an overlay, and in the middle of a cluster.
        disk.push(&[(64, 64, 0), (512, 128, 0), (1028, 4, 0), (3000, 200, 2)]);
        disk.push(&[]);
        disk.push(&[(100, 8, 3), (3100, 1, 3)]);
        assert_eq!(disk.read(disk.chain()), disk.model, "the test's own model");
        let before: Vec<_> =
            disk.overlays.iter().map(|id| fs::read(disk.files.overlay(id)).unwrap()).collect();
        let size = ByteCount::from_mib(4);
        let merged =
            disk.files.merge_overlays(&disk.base, size, &disk.overlays, &PlainQemuImg).unwrap();
        assert_eq!(disk.read(node(&disk.files.overlay(&merged), &disk.base)), disk.model);
        let length = fs::metadata(disk.files.overlay(&merged)).unwrap().len();
        assert!(length < 2 << 20, "what no overlay holds stays in the base: {length} bytes");
        for (id, bytes) in disk.overlays.iter().zip(before) {
            assert!(fs::read(disk.files.overlay(id)).unwrap() == bytes, "a frozen overlay changed");
        }
    }

    #[test]
    fn a_merge_that_fails_names_the_overlay_and_leaves_nothing() {
        let mut disk = Disk::new();
        disk.push(&[(0, 4, 1)]);
        disk.push(&[(4, 4, 1)]);
        fs::write(disk.files.overlay(&disk.overlays[1]), b"rubbish").unwrap();
        let entries = || fs::read_dir(disk.files.state().join("overlays")).unwrap().count();
        let before = entries();
        let size = ByteCount::from_mib(4);
        let error =
            disk.files.merge_overlays(&disk.base, size, &disk.overlays, &PlainQemuImg).unwrap_err();
        assert!(error.to_string().contains(disk.overlays[1].as_str()), "{error}");
        assert_eq!(entries(), before);
        fs::remove_file(disk.files.overlay(&disk.overlays[0])).unwrap();
        let error =
            disk.files.merge_overlays(&disk.base, size, &disk.overlays, &PlainQemuImg).unwrap_err();
        assert!(error.to_string().contains(disk.overlays[0].as_str()), "{error}");
    }

    #[test]
    fn overlays_are_equal_files_of_different_names() {
        let state = tempfile::tempdir().unwrap();
        let hot = tempfile::tempdir().unwrap();
        let files = StoreFiles::open(state.path(), hot.path()).unwrap();
        let size = ByteCount::from_mib(64);
        let [a, b] = [(); 2].map(|()| files.create_overlay(size).unwrap());
        assert_ne!(a, b);
        let [a, b] = [a, b].map(|id| fs::read(files.overlay(&id)).unwrap());
        assert_eq!(a, b);
        assert_eq!(&a[..4], b"QFI\xfb", "the magic number of qcow2");
        assert_eq!(u64::from_be_bytes(a[8..16].try_into().unwrap()), 0, "no backing file");
    }
}
