//! Writing files so that they are there as a whole or not at all.
//!
//! ```text
//! reserve space -> write <name>.<random>.new -> flush the file -> rename -> flush the directory
//! ```
//!
//! In the hot directory nothing is flushed: it does not outlive the host.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forkd_sys::schedule::RunQueue;
use forkd_types::{ByteCount, LayerId, PageRun};
use rustix::io::Errno;

use crate::StoreError;
use crate::failpoint::{Failpoint, reach};
use crate::private::private_file;

/// Bytes copied at once.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Rest between two of them where others want the processor: this work is never urgent, and guests
/// should not lose a whole time slice to it.
const REST: Duration = Duration::from_micros(200);

/// Sees to it that long work rests.
pub(crate) struct Rest {
    others: RunQueue,
    since: usize,
}

impl Rest {
    pub(crate) fn new() -> Self {
        Self { others: RunQueue::open(), since: 0 }
    }

    /// So many bytes have been worked on.
    pub(crate) fn after(&mut self, bytes: usize) {
        self.since += bytes;
        if self.since >= CHUNK_BYTES {
            self.since = 0;
            if self.others.is_crowded() {
                std::thread::sleep(REST);
            }
        }
    }
}

/// Writes a file under a temporary name, flushes it, gives it its name, and flushes the directory.
pub(crate) fn write_durable<T>(
    path: &Path,
    write: impl FnOnce(&File) -> io::Result<T>,
) -> Result<T, StoreError> {
    let unfinished = unfinished(path);
    let written =
        reach(Failpoint::Writing(&unfinished)).and_then(|()| fresh(&unfinished)).and_then(|file| {
            let value = write(&file)?;
            reach(Failpoint::Written(&unfinished))?;
            file.sync_all()?;
            reach(Failpoint::Flushed(&unfinished))?;
            rename(&unfinished, path)?;
            Ok(value)
        });
    if written.is_err() {
        // The error that matters is the first one; a leftover is removed at the next start.
        fs::remove_file(&unfinished).ok();
    }
    let value = written.map_err(|source| StoreError::file("write", path, source))?;
    sync_directory(path.parent().unwrap_or(path))?;
    Ok(value)
}

/// Writes a file that only this user may read, durably and in one step.
///
/// # Errors
/// [`StoreError::File`]; then the file is what it was.
pub fn write_private_file(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    write_durable(path, |mut file| io::Write::write_all(&mut file, bytes))
}

/// Removes what writing `path` has left when a host or a program ended within it.
///
/// # Errors
/// [`StoreError::File`].
pub fn remove_unfinished(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::file("look into", path, source);
    let folder = path.parent().unwrap_or(path);
    let begins = path.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.as_encoded_bytes();
        if name.strip_prefix(begins).is_some_and(|rest| rest.ends_with(UNFINISHED.as_bytes())) {
            remove(&folder.join(String::from_utf8_lossy(name).as_ref()));
        }
    }
    Ok(())
}

/// The end of the names of files that are not finished.
const UNFINISHED: &str = ".new";

/// Makes a file under a name of its own and then gives it its name, so that whoever opens `path`
/// finds all of it or what was there before. Not durable.
pub(crate) fn put(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let unfinished = unfinished(path);
    let written = reach(Failpoint::Writing(&unfinished))
        .and_then(|()| write(&unfinished))
        .and_then(|()| reach(Failpoint::Written(&unfinished)))
        .and_then(|()| rename(&unfinished, path));
    if written.is_err() {
        // The error that matters is the first one; a leftover is removed at the next start.
        fs::remove_file(&unfinished).ok();
    }
    written
}

/// A name that nobody else uses, which says what it is and that it is not finished.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}{UNFINISHED}", LayerId::random()));
    name.into()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    reach(Failpoint::Renaming { from, to })?;
    fs::rename(from, to)?;
    reach(Failpoint::Renamed { from, to })
}

pub(crate) fn fresh(path: &Path) -> io::Result<File> {
    private_file(OpenOptions::new().read(true).write(true).create(true).truncate(true), path)
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .and_then(|()| reach(Failpoint::DirectoryFlushed(path)))
        .map_err(|source| StoreError::file("make durable", path, source))
}

/// Removes a file, which need not be there.
pub(crate) fn remove(path: &Path) {
    let removed = reach(Failpoint::Removing(path))
        .and_then(|()| fs::remove_file(path))
        .and_then(|()| reach(Failpoint::Removed(path)));
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file of the store");
    }
}

/// Allocates the blocks of all runs, so that a lack of space shows before anything is written, and
/// the file does not end up scattered. Where the file system cannot, writing does it.
pub(crate) fn reserve(file: &File, runs: &[PageRun]) -> io::Result<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    for run in runs {
        let flags = rustix::fs::FallocateFlags::empty();
        let (start, length) = (run.start.byte_offset(), run.bytes().get());
        match rustix::fs::fallocate(file, flags, start, length) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno @ (Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                if !TOLD.swap(true, Ordering::Relaxed) {
                    let why = "a file system of the store cannot reserve space: a lack of it shows \
                               only while a layer is written";
                    tracing::warn!(%errno, "{why}");
                }
                return Ok(());
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Copies runs to the same places and returns the checksum of their pages.
pub(crate) fn copy_runs(from: &File, to: &File, runs: &[PageRun]) -> io::Result<u32> {
    each_part(from, runs, |part, at| to.write_all_at(part, at))
}

/// The checksum of the pages of these runs.
pub(crate) fn checksum_runs(file: &File, runs: &[PageRun]) -> io::Result<u32> {
    each_part(file, runs, |_, _| Ok(()))
}

fn each_part(
    from: &File,
    runs: &[PageRun],
    mut take: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut rest = Rest::new();
    for run in runs {
        let (mut at, end) = (run.start.byte_offset(), run.end().byte_offset());
        while at < end {
            let length = ByteCount::new(end - at).as_usize().min(CHUNK_BYTES);
            let part = &mut buffer[..length];
            from.read_exact_at(part, at)?;
            hasher.update(part);
            take(part, at)?;
            at += length as u64;
            rest.after(length);
        }
    }
    Ok(hasher.finalize())
}
