//! Around a branch: keeping the source's memory and disk shallow. The guest runs on; branches of
//! this sandbox wait. A failure is logged and tried again around the next branch.

use forkd_types::limit;

use super::Branches;
use crate::EngineError;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandboxes::{Machine, SandboxHandle};

impl Branches {
    /// Merges the deltas that branches of this machine have added, when there are many: the next
    /// branch builds on what they show. Snapshots keep the layers that they list.
    pub(crate) fn merge_deltas(&self, handle: &SandboxHandle, machine: &mut Machine) {
        let origin = machine.origin.layers.clone();
        let Some(memory) = machine.memory_mut() else { return };
        let layers = memory.below.ids();
        let inherited = layers.iter().filter(|id| origin.contains(id)).count();
        // The base is not merged; inherited deltas only where the chain has grown over generations.
        let is_short = layers.len() < limit::CHAIN_DEPTH_BEFORE_MERGE;
        let from = if is_short { inherited.max(1) } else { 1 };
        if layers.len() - from < limit::DELTAS_BEFORE_MERGE {
            return;
        }
        let operation = self.begin_merge(handle, "merge the memory");
        let merged = memory.below.merged(from).map_err(EngineError::from);
        operation.finish(&merged);
        match merged {
            Ok(below) => {
                memory.below = below;
                self.snapshots.files.claim(handle.id(), machine.files());
            }
            Err(error) => {
                let (sandbox, id) = (handle.id(), operation.id());
                tracing::warn!(%sandbox, operation = %id, %error, "a chain stays unmerged");
            }
        }
    }

    /// An operation that nobody can cancel: the next branch builds on what it merges.
    fn begin_merge(&self, handle: &SandboxHandle, step: &'static str) -> Running {
        let subject = Subject::of_sandbox(handle.id(), handle.owner());
        let why = "a sandbox is not left with half of it";
        let operation = self.operations.start_committed(OperationKind::Flatten, subject, why);
        operation.step(step);
        operation
    }

    /// Merges the overlays that a machine has inherited when there are many: otherwise a snapshot
    /// would list them all, and each generation of branches of branches one more. Only before the
    /// machine's first branch: a later one finds what [`Self::flatten_disk`] has left.
    pub(crate) fn flatten_inherited_disk(&self, handle: &SandboxHandle, machine: &mut Machine) {
        if machine.standby.is_none() {
            self.flatten_disk(handle, machine);
        }
    }

    /// Merges the frozen overlays of a machine's disk when there are many, or when they take much.
    /// No overlay may stand by: its place is on top of the one that takes the writes.
    pub(crate) fn flatten_disk(&self, handle: &SandboxHandle, machine: &mut Machine) {
        let are_many = machine.overlays.len() >= limit::OVERLAYS_BEFORE_FLATTEN;
        if are_many || self.is_short_of_disk(machine) {
            self.merge_disk(handle, machine);
        }
    }

    /// The same, however many they are.
    pub(super) fn merge_disk(&self, handle: &SandboxHandle, machine: &mut Machine) {
        let Some(bytes) = machine.disk.filter(|_| machine.vm.is_in_sync()) else { return };
        let files = &self.snapshots.files;
        let merged = match files.create_overlay(bytes) {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!(sandbox = %handle.id(), %error, "a disk stays unflattened");
                return;
            }
        };
        let operation = self.begin_merge(handle, "merge the disk");
        let inherited = self.inherited(machine);
        self.let_merge(handle, machine);
        let flattened =
            self.give_overlay(handle, machine, &merged, |vm, path| vm.flatten_disk(path));
        operation.finish(&flattened);
        match flattened {
            Ok(true) => {
                machine.inherited = inherited.min(self.size_of(&merged));
                let top = machine.overlays.pop();
                machine.overlays = std::iter::once(merged).chain(top).collect();
                files.claim(handle.id(), machine.files());
                if let Err(error) = self.sandboxes.record(handle, machine) {
                    tracing::warn!(sandbox = %handle.id(), %error, "a merge is not written down");
                }
            }
            Ok(false) => files.remove_overlay(&merged),
            Err(error) => {
                files.remove_overlay(&merged);
                if !machine.vm.has_exited() {
                    let (sandbox, id) = (handle.id(), operation.id());
                    tracing::warn!(%sandbox, operation = %id, %error, "a disk stays unflattened");
                }
            }
        }
        self.limit_disk(handle, machine);
    }
}
