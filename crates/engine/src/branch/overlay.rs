//! The overlay that a source goes on in: made before the pause, and put in its place afterwards.

use std::path::PathBuf;

use forkd_store::FileSet;
use forkd_types::OverlayId;
use forkd_vmm::{DiskOverlay, Vm, VmmError};

use super::Branches;
use crate::EngineError;
use crate::sandboxes::{Machine, SandboxHandle, StandbyOverlay};

impl Branches {
    /// The overlay that the source will go on in, open in the VMM. None for a machine without disk.
    pub(super) fn next_overlay(
        &self,
        handle: &SandboxHandle,
        machine: &mut Machine,
    ) -> Result<Option<DiskOverlay>, EngineError> {
        if let Some(standby) = &machine.standby {
            return Ok(Some(standby.node.clone()));
        }
        let Some(bytes) = machine.disk else { return Ok(None) };
        let files = &self.snapshots.files;
        let id = files.create_overlay(bytes)?;
        match self.give_overlay(handle, machine, &id, |vm, path| vm.add_overlay(path)) {
            Ok(node) => {
                files.claim_also(handle.id(), FileSet::new([], [id.clone()]));
                machine.standby = Some(StandbyOverlay { id, node: node.clone() });
                Ok(Some(node))
            }
            Err(error) => {
                files.remove_overlay(&id);
                Err(error)
            }
        }
    }

    /// Gives the VMM an overlay. It is written down before the VMM can name it: a later daemon
    /// takes over no VMM that names others.
    pub(super) fn give_overlay<T>(
        &self,
        handle: &SandboxHandle,
        machine: &mut Machine,
        id: &OverlayId,
        give: impl FnOnce(&mut dyn Vm, PathBuf) -> Result<T, VmmError>,
    ) -> Result<T, EngineError> {
        machine.expected = Some(id.clone());
        let given = self.sandboxes.record(handle, machine).and_then(|()| {
            let given = give(machine.vm.as_mut(), self.snapshots.files.overlay(id));
            Ok(given?)
        });
        machine.expected = None;
        given
    }

    /// Closes the overlay that stands by, if one does. Tells whether none stands by any more.
    pub(super) fn withdraw_overlay(&self, handle: &SandboxHandle, machine: &mut Machine) -> bool {
        let Some(standby) = machine.standby.take() else { return true };
        if let Err(error) = machine.vm.remove_overlay(&standby.node) {
            tracing::debug!(sandbox = %handle.id(), %error, "an overlay goes on standing by");
            machine.standby = Some(standby);
            return false;
        }
        self.release_overlay(handle, standby);
        true
    }

    /// To be called after a pause window. Keeps the overlay that was made for the branch if the
    /// source writes there now, whatever became of the branch, and else removes it. Waits with that
    /// for a VMM that is silent.
    pub(super) fn place_overlay(&self, handle: &SandboxHandle, machine: &mut Machine) {
        let exited = machine.vm.has_exited();
        if !machine.vm.is_in_sync() && !exited {
            return;
        }
        let Some(standby) = machine.standby.take() else { return };
        if machine.vm.top_overlay() == Some(&standby.node) {
            machine.overlays.push(standby.id);
            return;
        }
        if !exited && let Err(error) = machine.vm.remove_overlay(&standby.node) {
            tracing::warn!(%error, "an unused disk overlay stays open in the VMM");
        }
        self.release_overlay(handle, standby);
    }

    /// An overlay that nobody uses goes with the claim to it.
    fn release_overlay(&self, handle: &SandboxHandle, standby: StandbyOverlay) {
        let files = &self.snapshots.files;
        let mut claimed = files.claimed_by(handle.id());
        claimed.overlays.remove(&standby.id);
        files.claim(handle.id(), claimed);
    }
}
