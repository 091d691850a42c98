//! The device state of a branch, before it belongs to a layer.

use std::path::PathBuf;

use forkd_store::StoreFiles;
use forkd_types::SandboxId;

/// Where a VMM writes it.
pub(super) fn device_state(files: &StoreFiles, id: &SandboxId) -> PathBuf {
    files.vm_directory(id).join("device-state")
}

/// Removes that of a branch that failed.
pub(crate) fn remove_device_state(files: &StoreFiles, id: &SandboxId) {
    let path = device_state(files, id);
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a device state");
    }
}
