//! After a branch: a source whose VMM was silent, and what a branch that failed has left.

use std::path::PathBuf;

use forkd_types::SandboxId;
use forkd_vmm::VmmError;

use crate::engine::Inner;
use crate::sandbox::{Machine, SandboxHandle};

/// How long one look at a silent VMM may take. Orders for the sandbox wait meanwhile.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

/// Makes sure that the source runs, and that it is known what it runs on. Quick where the VMM
/// answered all along.
///
/// # Errors
/// When the VMM is still silent, or refuses to run the guest: to be tried again.
pub(crate) fn settle(
    inner: &Inner,
    handle: &SandboxHandle,
    machine: &mut Machine,
) -> Result<(), VmmError> {
    // The end of a VMM is the business of those who watch the process.
    if machine.vm.is_in_sync() || machine.vm.has_exited() {
        return Ok(());
    }
    machine.vm.resync(LOOK)?;
    place_overlay(inner, handle, machine);
    // It may have been written after the branch was given up.
    remove_device_state(inner, handle.id());
    Ok(())
}

/// To be called after a pause window. Keeps the overlay that was made for the branch if the source
/// writes there now, whatever became of the branch, and else removes it. Waits with that for a VMM
/// that is silent.
pub(super) fn place_overlay(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    let ended = machine.vm.has_exited();
    if !machine.vm.is_in_sync() && !ended {
        return;
    }
    let Some(loose) = machine.loose.take() else { return };
    if machine.vm.top_overlay() == Some(&loose.node) {
        machine.overlays.push(loose.id);
        return;
    }
    handle.set_files(handle.layers(), machine.overlays.clone());
    if !ended && let Err(error) = machine.vm.remove_overlay(&loose.node) {
        tracing::warn!(%error, "an unused disk overlay stays open in the VMM");
    }
    inner.files.remove_overlay(&loose.id);
}

/// Where a VMM writes its device state, before it belongs to a layer.
pub(super) fn device_state(inner: &Inner, id: &SandboxId) -> PathBuf {
    inner.files.vm_directory(id).join("device-state")
}

/// Removes the device state of a branch that failed.
pub(crate) fn remove_device_state(inner: &Inner, id: &SandboxId) {
    let path = device_state(inner, id);
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a device state");
    }
}
