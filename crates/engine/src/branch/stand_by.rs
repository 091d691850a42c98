//! After a branch: what the next one will need is made ahead, so that it is not made while somebody
//! waits. A source that has been branched once is likely to be branched again.

use forkd_vmm::{DiskOverlay, PausePlan};

use super::settle;
use crate::EngineError;
use crate::engine::Inner;
use crate::sandbox::{LooseOverlay, Machine, SandboxHandle};

/// Opens the next disk overlay in the VMM and loads the commands of the next pause window. A
/// failure is no more than a slower next branch, which reports it if it persists.
pub(crate) fn stand_by(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    if !machine.vm.is_in_sync() || machine.vm.has_exited() {
        return;
    }
    let ready = next_overlay(inner, handle, machine).and_then(|overlay| {
        let device_state = settle::device_state(inner, handle.id());
        Ok(machine.vm.load_pause(PausePlan { device_state, overlay })?)
    });
    if let Err(error) = ready {
        tracing::debug!(sandbox = %handle.id(), %error, "nothing stands by for the next branch");
    }
}

/// The overlay that the source will go on in, open in the VMM. None for a machine without disk.
pub(super) fn next_overlay(
    inner: &Inner,
    handle: &SandboxHandle,
    machine: &mut Machine,
) -> Result<Option<DiskOverlay>, EngineError> {
    if let Some(loose) = &machine.loose {
        return Ok(Some(loose.node.clone()));
    }
    let Some(bytes) = machine.disk else { return Ok(None) };
    let id = inner.files.create_overlay(bytes)?;
    match machine.vm.add_overlay(inner.files.overlay(&id)) {
        Ok(node) => {
            handle.push_overlay(id.clone());
            machine.loose = Some(LooseOverlay { id, node: node.clone() });
            Ok(Some(node))
        }
        Err(error) => {
            inner.files.remove_overlay(&id);
            Err(error.into())
        }
    }
}
