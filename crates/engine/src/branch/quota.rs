//! How much of the host's disk the overlays of one sandbox may take that it has written since its
//! start. What it has inherited belongs to its snapshot.
//!
//! The VMM's limit for files is what is left for the overlay that takes the writes, so it holds
//! between two branches as well. It is set after the source has resumed: nothing here happens in
//! the pause window. A branch would add an overlay, so it is refused where nothing is left.
//!
//! The limit needs a confined VMM. Of another one the overlays are only looked at before a branch.
//! A VMM that was taken over may still extend overlays that it has written to before, each to its
//! limit for files, and its next branch is refused.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use forkd_types::{ByteCount, OverlayId, limit};

use super::Branches;
use crate::EngineError;
use crate::host::{disk_max, file_max};
use crate::sandboxes::{Machine, SandboxHandle};

/// What `st_blocks` counts.
const BLOCK_BYTES: u64 = 512;

/// What a sandbox's own overlays take on the host.
#[derive(Debug, Clone, Copy)]
struct OwnDisk {
    frozen: ByteCount,
    /// The one that takes the writes.
    top: ByteCount,
}

impl Branches {
    /// Refuses the branch of a sandbox whose own overlays take what they may, merged if that helps.
    /// The source is not touched.
    pub(super) fn require_disk_quota(
        &self,
        handle: &SandboxHandle,
        machine: &mut Machine,
    ) -> Result<(), EngineError> {
        let Some(most) = machine.disk.map(|disk| disk_max(disk, self.sandbox_disk)) else {
            return Ok(());
        };
        let in_use = |machine: &Machine| {
            let own = self.own_disk(machine);
            own.frozen + own.top
        };
        if in_use(machine) < most {
            return Ok(());
        }
        if machine.overlays.len() > 2 && self.withdraw_overlay(handle, machine) {
            self.merge_disk(handle, machine);
        }
        let in_use = in_use(machine);
        if in_use < most {
            return Ok(());
        }
        Err(EngineError::DiskQuotaReached { id: handle.id().clone(), most, in_use })
    }

    /// Limits the overlay that takes the writes to what is left. After a branch, and when somebody
    /// else has limited it.
    pub(crate) fn limit_disk(&self, handle: &SandboxHandle, machine: &mut Machine) {
        let Some(disk) = machine.disk else { return };
        let left = minus(disk_max(disk, self.sandbox_disk), self.own_disk(machine).frozen);
        // Device state is a file too.
        let most = file_max(Some(disk), self.sandbox_disk).min(left.max(limit::DEVICE_STATE_MAX));
        self.limit_files(handle, machine, most);
    }

    /// Lets the VMM fill an overlay with what all others hold.
    pub(super) fn let_merge(&self, handle: &SandboxHandle, machine: &mut Machine) {
        self.limit_files(handle, machine, file_max(machine.disk, self.sandbox_disk));
    }

    fn limit_files(&self, handle: &SandboxHandle, machine: &mut Machine, most: ByteCount) {
        if let Err(error) = machine.vm.limit_files(most)
            && !machine.vm.has_exited()
        {
            let sandbox = handle.id();
            tracing::warn!(%sandbox, %error, "the limit of what a VMM may write stays as it was");
        }
    }

    /// Whether so little is left that overlays are merged for it, and so much may become free that
    /// it is worth a copy.
    pub(super) fn is_short_of_disk(&self, machine: &Machine) -> bool {
        let Some(disk) = machine.disk else { return false };
        let most = disk_max(disk, self.sandbox_disk);
        let own = self.own_disk(machine);
        let [lowest, _, .., _] = machine.overlays.as_slice() else { return false };
        let lowest = if machine.inherits(lowest) { ByteCount::ZERO } else { self.size_of(lowest) };
        minus(most, own.frozen + own.top).get() < most.get() / 3
            && minus(own.frozen, lowest).get() >= most.get() / 8
    }

    fn own_disk(&self, machine: &Machine) -> OwnDisk {
        let Some((top, frozen)) = machine.overlays.split_last() else {
            return OwnDisk { frozen: ByteCount::ZERO, top: ByteCount::ZERO };
        };
        let own = frozen.iter().filter(|id| !machine.inherits(id));
        let frozen = minus(own.map(|id| self.size_of(id)).sum(), machine.inherited);
        OwnDisk { frozen, top: self.size_of(top) }
    }

    /// What the frozen overlays of a machine have of its snapshot.
    pub(super) fn inherited(&self, machine: &Machine) -> ByteCount {
        let inherited = machine.overlays.iter().filter(|id| machine.inherits(id));
        machine.inherited + inherited.map(|id| self.size_of(id)).sum()
    }

    /// What an overlay takes on the host.
    pub(super) fn size_of(&self, id: &OverlayId) -> ByteCount {
        let found = fs::metadata(self.snapshots.files.overlay(id));
        ByteCount::new(found.map_or(0, |metadata| metadata.blocks() * BLOCK_BYTES))
    }
}

fn minus(from: ByteCount, bytes: ByteCount) -> ByteCount {
    ByteCount::new(from.get().saturating_sub(bytes.get()))
}
