//! A tmpfs of a test's own, small enough to fill.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

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
        take_the_rest(&mut File::create(file).expect("a file"));
    }

    /// As [`Self::fill_up`], and what becomes free is taken too, until the result is dropped: work
    /// that went on when the file system filled up may give back what it had.
    #[must_use]
    pub fn keep_full(file: &Path) -> KeptFull {
        let mut file = File::create(file).expect("a file");
        take_the_rest(&mut file);
        let (ended, end) = mpsc::channel::<()>();
        let keeper = std::thread::spawn(move || {
            while end.recv_timeout(REFILL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                take_the_rest(&mut file);
            }
        });
        KeptFull { ended: Some(ended), keeper: Some(keeper) }
    }
}

/// How soon free space is taken.
const REFILL_INTERVAL: Duration = Duration::from_millis(1);

fn take_the_rest(file: &mut File) {
    let mut size = 1 << 20;
    while size >= 4096 {
        match file.write(&vec![1; size]) {
            Ok(written) if written > 0 => {}
            _ => size /= 2,
        }
    }
}

/// A file system that is kept full; what fills it stays when this is dropped.
#[derive(Debug)]
pub struct KeptFull {
    ended: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Drop for KeptFull {
    fn drop(&mut self) {
        self.ended.take();
        if let Some(keeper) = self.keeper.take() {
            keeper.join().ok();
        }
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        // Lazily: a VMM may be ending.
        rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH).expect("it is mounted");
    }
}
