//! After a branch: a source whose VMM was silent.

use std::time::Duration;

use forkd_vmm::VmmError;

use super::Branches;
use super::device_state::remove_device_state;
use crate::sandboxes::{Machine, SandboxHandle};

/// How long one look at a silent VMM may take. Requests for the sandbox wait meanwhile.
const LOOK: Duration = Duration::from_millis(200);

impl Branches {
    /// Makes sure that the source runs, and that it is known what it runs on. Quick where the VMM
    /// answered all along.
    ///
    /// # Errors
    /// When the VMM is still silent, or refuses to run the guest: to be tried again.
    pub(crate) fn resync(
        &self,
        handle: &SandboxHandle,
        machine: &mut Machine,
    ) -> Result<(), VmmError> {
        // The exit of a VMM is the business of those who watch the process.
        if machine.vm.is_in_sync() || machine.vm.has_exited() {
            return Ok(());
        }
        machine.vm.resync(LOOK)?;
        self.place_overlay(handle, machine);
        // It may have been written after the branch was given up.
        remove_device_state(&self.snapshots.files, handle.id());
        Ok(())
    }
}
