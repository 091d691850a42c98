//! What the snapshots of one owner may occupy.
//!
//! Counted are the memory layers and disk overlays that no snapshot of another owner lists: what is
//! branched from a shared template does not pay for the template. A snapshot that is being written
//! counts with the whole of its guest's memory, which is the most that its layer can become; so
//! memory never exceeds the limit. What its disk overlay will have is not known before.

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::{ByteCount, Owner, SnapshotStatus};

use super::Snapshots;
use crate::EngineError;

/// The name of the limit.
const LIMIT: &str = "owner_max_disk_mib";

impl Snapshots {
    /// Refuses another snapshot of `owner` when it could come to occupy `asked` too much.
    pub(super) fn check_disk_of(&self, owner: &Owner, asked: ByteCount) -> Result<(), EngineError> {
        let Some(max) = self.disk_of_owner else { return Ok(()) };
        let (files, promised) = charged(&self.catalog.list(), owner);
        let in_use = self.files.occupied(&files) + promised;
        if asked.get() <= max.get().saturating_sub(in_use.get()) {
            return Ok(());
        }
        let (max, in_use, asked) = (max.to_string(), in_use.to_string(), asked.to_string());
        Err(EngineError::LimitReached { limit: LIMIT, max, in_use, asked })
    }
}

/// The files that `owner` pays for, and what its snapshots may become that are being written.
fn charged(rows: &[SnapshotRow], owner: &Owner) -> (FileSet, ByteCount) {
    let (own, others): (Vec<&SnapshotRow>, Vec<_>) =
        rows.iter().partition(|row| row.tag.owner() == owner);
    let listed = |rows: &[&SnapshotRow]| -> FileSet {
        rows.iter().map(|row| FileSet::from(&row.manifest)).collect()
    };
    let writing = own.iter().filter(|row| row.status == SnapshotStatus::Writing);
    let promised = writing.map(|row| row.manifest.memory).sum();
    (listed(&own).minus(&listed(&others)), promised)
}
