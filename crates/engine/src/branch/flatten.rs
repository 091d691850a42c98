//! After a branch: keeping the source's disk shallow.

use crate::collect::Candidates;
use crate::engine::Inner;
use crate::sandbox::{Machine, SandboxHandle};
use forkd_types::limit;

/// Merges the frozen overlays of a machine's disk when there are many. The guest runs on; branches
/// of this sandbox wait. A failure is logged and tried again after the next branch.
pub(crate) fn flatten_disk(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    let Some(bytes) = machine.disk else { return };
    if machine.overlays.len() < limit::OVERLAYS_BEFORE_FLATTEN {
        return;
    }
    let merged = match inner.files.create_overlay(bytes) {
        Ok(id) => id,
        Err(error) => {
            tracing::warn!(sandbox = %handle.id(), %error, "a disk stays unflattened");
            return;
        }
    };
    match machine.vm.flatten_disk(inner.files.overlay(&merged)) {
        Ok(true) => {
            let top = machine.overlays.pop();
            let frozen = std::mem::take(&mut machine.overlays);
            machine.overlays = std::iter::once(merged).chain(top).collect();
            handle.set_files(handle.layers(), machine.overlays.clone());
            inner.collect(&Candidates { layers: Vec::new(), overlays: frozen });
        }
        Ok(false) => inner.files.remove_overlay(&merged),
        Err(error) => {
            inner.files.remove_overlay(&merged);
            if !machine.vm.has_ended() {
                tracing::warn!(sandbox = %handle.id(), %error, "a disk stays unflattened");
            }
        }
    }
}
