//! How much room there is. Asked before anything large is written: on tmpfs a missing page kills
//! the VMM that writes it.

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

/// Bytes in use on the file system of `directory`.
///
/// # Errors
/// When the file system cannot be asked.
pub fn used_bytes(directory: &Path) -> Result<ByteCount, StoreError> {
    let stat = statvfs(directory)?;
    let blocks = stat.f_blocks.saturating_sub(stat.f_bfree);
    Ok(ByteCount::new(blocks.saturating_mul(stat.f_frsize)))
}

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
