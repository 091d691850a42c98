//! After a branch: what the next one will need is made ahead, so that it is not made while somebody
//! waits. A source that has been branched once is likely to be branched again.

use forkd_vmm::PausePlan;

use super::Branches;
use super::device_state::device_state;
use crate::sandboxes::{Machine, SandboxHandle};

impl Branches {
    /// Opens the next disk overlay in the VMM and loads the commands of the next pause window. A
    /// failure is no more than a slower next branch, which reports it if it persists.
    pub(crate) fn stand_by(&self, handle: &SandboxHandle, machine: &mut Machine) {
        if !machine.vm.is_in_sync() || machine.vm.has_exited() {
            return;
        }
        let ready = self.next_overlay(handle, machine).and_then(|overlay| {
            let device_state = device_state(&self.snapshots.files, handle.id());
            Ok(machine.vm.load_pause(PausePlan { device_state, overlay })?)
        });
        if let Err(error) = ready {
            tracing::debug!(sandbox = %handle.id(), %error, "nothing stands by for the next branch");
        }
    }
}
