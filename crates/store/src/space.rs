//! How much room there is. Asked before anything large is written: on tmpfs a missing page kills
//! the VMM that writes it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use forkd_types::{ByteCount, limit};

use crate::StoreError;

/// Bytes that may still be written below `directory`.
///
/// # Errors
/// When the file system cannot be asked.
pub fn free_bytes(directory: &Path) -> Result<ByteCount, StoreError> {
    let stat = statvfs(directory)?;
    Ok(ByteCount::new(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// Bytes that the files below `directory` occupy; holes count nothing. What goes or comes meanwhile
/// may or may not be counted.
#[must_use]
pub fn allocated_bytes(directory: &Path) -> ByteCount {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        // Of the entry itself: a link is not followed.
        let metadata = entry.metadata().ok()?;
        Some(match metadata.is_dir() {
            true => allocated_bytes(&entry.path()),
            false => ByteCount::new(metadata.blocks() * BLOCK_BYTES),
        })
    });
    bytes.sum()
}

/// Bytes that one file occupies; none if it is not there.
pub(crate) fn file_bytes(path: &Path) -> ByteCount {
    let metadata = fs::symlink_metadata(path);
    ByteCount::new(metadata.map_or(0, |metadata| metadata.blocks() * BLOCK_BYTES))
}

/// The unit in which `stat(2)` tells what a file occupies.
const BLOCK_BYTES: u64 = 512;

fn statvfs(directory: &Path) -> Result<rustix::fs::StatVfs, StoreError> {
    rustix::fs::statvfs(directory)
        .map_err(|errno| StoreError::file("ask for free space in", directory, errno.into()))
}

/// Refuses when `bytes` and the reserve do not fit.
pub(crate) fn require(directory: &Path, bytes: ByteCount) -> Result<(), StoreError> {
    let needed = bytes + ByteCount::new(limit::HOT_RESERVE_BYTES);
    let free = free_bytes(directory)?;
    if free < needed {
        return Err(StoreError::NoSpace { directory: directory.to_owned(), needed, free });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_occupy_is_counted_at_any_depth_and_holes_are_not() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(directory.path().join("below/full"), vec![1; 8192]).unwrap();
        fs::File::create(directory.path().join("hole")).unwrap().set_len(1 << 20).unwrap();
        std::os::unix::fs::symlink("below", directory.path().join("link")).unwrap();
        assert_eq!(allocated_bytes(directory.path()), ByteCount::new(8192));
        assert_eq!(allocated_bytes(&directory.path().join("absent")), ByteCount::ZERO);
    }
}
