//! A tmpfs of a test's own, small enough to fill.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// A mounted tmpfs; unmounted when dropped. Needs root.
#[derive(Debug)]
pub struct SmallTmpfs {
    mount_point: PathBuf,
    _directory: TempDir,
}

impl SmallTmpfs {
    /// Mounts a tmpfs of `mebibytes`.
    #[must_use]
    pub fn mount(mebibytes: u64) -> Self {
        let directory = TempDir::with_prefix("forkd-tmpfs-").expect("a directory");
        let mount_point = directory.path().join("hot");
        std::fs::create_dir(&mount_point).expect("a mount point");
        let options =
            std::ffi::CString::new(format!("size={mebibytes}m,mode=0700")).expect("no zero byte");
        rustix::mount::mount(
            "tmpfs",
            &mount_point,
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("a tmpfs can be mounted (the VM tier needs root)");
        Self { mount_point, _directory: directory }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Writes a file so large that only `mebibytes_left` remain.
    pub fn fill(&self, file: &Path, mebibytes_left: u64) {
        let stat = rustix::fs::statvfs(&self.mount_point).expect("statvfs");
        let free_mebibytes = (stat.f_bavail * stat.f_frsize) >> 20;
        let mut file = File::create(file).expect("a file");
        for _ in 0..free_mebibytes.saturating_sub(mebibytes_left) {
            file.write_all(&[1; 1 << 20]).expect("there is space");
        }
    }

    /// Writes a file so large that nothing remains.
    pub fn fill_up(file: &Path) {
        let mut file = File::create(file).expect("a file");
        let mut size = 1 << 20;
        while size >= 4096 {
            match file.write(&vec![1; size]) {
                Ok(written) if written > 0 => {}
                _ => size /= 2,
            }
        }
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        // Lazily: a VMM may be ending.
        rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH).expect("it is mounted");
    }
}
