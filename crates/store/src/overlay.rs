//! Disk overlays: qcow2 files that hold what differs from what is below.
//!
//! A blank overlay is made once for each disk size with `qemu-img` and copied from then on: a copy
//! takes well under a millisecond, a run of `qemu-img` ten. It names no backing file; the VMM is
//! told explicitly what lies below.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use forkd_types::{ByteCount, LayerId};

use crate::{StoreError, StoreFiles};

impl StoreFiles {
    /// A new blank overlay for a disk of `disk` bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create_overlay(&self, disk: ByteCount) -> Result<LayerId, StoreError> {
        let blank = self.blank_overlay(disk)?;
        let id = LayerId::random();
        let path = self.overlay(&id);
        let copied = fs::copy(&blank, &path);
        copied.map_err(|source| {
            self.remove_overlay(&id);
            StoreError::file("create disk overlay", &path, source)
        })?;
        Ok(id)
    }

    fn blank_overlay(&self, disk: ByteCount) -> Result<PathBuf, StoreError> {
        let path = self.state().join("overlays").join(format!("blank-{}.qcow2", disk.get()));
        if path.exists() {
            return Ok(path);
        }
        // Under a name of its own first: two may be made at the same time, and a torn one must
        // never be copied.
        let unfinished = path.with_extension(format!("{}.new", LayerId::random()));
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
            return Err(failed(std::io::Error::other(words)));
        }
        fs::rename(&unfinished, &path)
            .map_err(|source| StoreError::file("create disk overlay", &path, source))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
