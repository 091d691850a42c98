//! Around a branch: keeping the source's memory and disk shallow. The guest runs on; branches of
//! this sandbox wait. A failure is logged and tried again around the next branch.

use forkd_store::FileSet;
use forkd_types::limit;

use crate::EngineError;
use crate::engine::Inner;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::{Machine, SandboxHandle};

/// Merges the deltas that branches of this machine have added, when there are many: the next branch
/// builds on what they show. Snapshots keep the layers that they list.
pub(crate) fn merge_deltas(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    let origin = machine.origin.layers.clone();
    let Some(memory) = machine.memory_mut() else { return };
    let layers = memory.below.ids();
    let inherited = layers.iter().filter(|id| origin.contains(id)).count();
    // The base is not merged; inherited deltas only where the chain has grown over generations.
    let from = if layers.len() < limit::CHAIN_DEPTH_BEFORE_MERGE { inherited.max(1) } else { 1 };
    if layers.len() - from < limit::DELTAS_BEFORE_MERGE {
        return;
    }
    let operation = begin(inner, handle, "merge the memory");
    let merged = memory.below.merged(from).map_err(EngineError::from);
    operation.end(&merged);
    match merged {
        Ok(below) => {
            memory.below = below;
            let superseded = handle.replace_layers(machine.layers());
            inner.collect(&FileSet::new(superseded, []));
        }
        Err(error) => {
            let (sandbox, id) = (handle.id(), operation.id());
            tracing::warn!(%sandbox, operation = %id, %error, "a chain stays unmerged");
        }
    }
}

/// An operation that nobody can cancel: the next branch builds on what it merges.
fn begin(inner: &Inner, handle: &SandboxHandle, step: &'static str) -> Running {
    let subject = Subject { snapshot: None, sandbox: Some(handle.id().clone()) };
    let why = "a sandbox is not left with half of it";
    let operation = inner.operations.start_committed(OperationKind::Flatten, subject, why);
    operation.step(step);
    operation
}

/// Merges the overlays that a machine has inherited when there are many: otherwise a snapshot would
/// list them all, and each generation of branches of branches one more. Only before the machine's
/// first branch: a later one finds what [`flatten_disk`] has left.
pub(crate) fn flatten_inherited_disk(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    if machine.loose.is_none() {
        flatten_disk(inner, handle, machine);
    }
}

/// Merges the frozen overlays of a machine's disk when there are many. No overlay may stand by: its
/// place is on top of the one that takes the writes.
pub(crate) fn flatten_disk(inner: &Inner, handle: &SandboxHandle, machine: &mut Machine) {
    let Some(bytes) = machine.disk else { return };
    if !machine.vm.is_in_sync() {
        return;
    }
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
    let operation = begin(inner, handle, "merge the disk");
    let flattened =
        machine.vm.flatten_disk(inner.files.overlay(&merged)).map_err(EngineError::from);
    operation.end(&flattened);
    match flattened {
        Ok(true) => {
            let top = machine.overlays.pop();
            let frozen = std::mem::take(&mut machine.overlays);
            machine.overlays = std::iter::once(merged).chain(top).collect();
            handle.replace_overlays(machine.all_overlays());
            inner.collect(&FileSet::new([], frozen));
        }
        Ok(false) => inner.files.remove_overlay(&merged),
        Err(error) => {
            inner.files.remove_overlay(&merged);
            if !machine.vm.has_exited() {
                let (sandbox, id) = (handle.id(), operation.id());
                tracing::warn!(%sandbox, operation = %id, %error, "a disk stays unflattened");
            }
        }
    }
}
