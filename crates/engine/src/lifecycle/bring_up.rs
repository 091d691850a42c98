//! From a snapshot to a machine whose guest has an identity of its own.
//!
//! Whatever fails, the VM is gone; what was made for it on disk is the caller's to remove.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::{SandboxId, SnapshotTag, limit};
use forkd_vmm::{Disk, MappedRun, RamBacking, Start, VmSpec};

use super::Lifecycle;
use crate::EngineError;
use crate::background::{blocking, turn};
use crate::guest::GuestAgent;
use crate::host::{connect_agent, for_child, process_number};
use crate::sandboxes::{Machine, SandboxHandle};

impl Lifecycle {
    /// Starts a VM of the snapshot in `row`, and waits until its guest has renewed itself.
    pub(super) async fn bring_up(
        self: &Arc<Self>,
        row: &SnapshotRow,
        handle: &Arc<SandboxHandle>,
    ) -> Result<Machine, EngineError> {
        let _turn = turn(&self.host.starting).await?;
        let mut machine = {
            let (this, row, handle) = (Arc::clone(self), row.clone(), Arc::clone(handle));
            blocking(move || this.start_machine(&row, &handle)).await??
        };
        // Before the device state is loaded: then the port is open for the guest as it was for the
        // source, and no byte is lost.
        let agent = connect_agent(&machine.vm.spec().agent_socket()).await?;
        let machine = {
            let (this, row) = (Arc::clone(self), row.clone());
            blocking(move || this.load(&row, &mut machine).map(|()| machine)).await??
        };
        let renewed = renew(&agent, handle.id(), &row.tag).await;
        if let Err(error) = renewed {
            // Silent because of its limit.
            return Err(blocking(move || machine.reached_limit()).await?.unwrap_or(error));
        }
        handle.set_agent(agent);
        Ok(machine)
    }

    /// Starts the VMM with a disk of its own; no guest runs yet.
    fn start_machine(
        &self,
        row: &SnapshotRow,
        handle: &SandboxHandle,
    ) -> Result<Machine, EngineError> {
        let (manifest, id) = (&row.manifest, handle.id());
        let image = self.snapshots.image_of(row)?;
        let files = &self.snapshots.files;
        let mut overlays = manifest.overlays.clone();
        if let Some((_, bytes)) = &image.root_disk {
            self.snapshots.require_overlays(row)?;
            overlays.push(files.create_overlay(*bytes)?);
        }
        files.claim_also(id, FileSet::new(manifest.layers.clone(), overlays.clone()));
        handle.set_origin(manifest.clone());
        let disk = image.root_disk.as_ref();
        let spec = VmSpec {
            accelerator: self.host.accelerator,
            memory: manifest.memory,
            vcpus: manifest.vcpus,
            boot: image.boot,
            ram: RamBacking::Layers {
                placeholder: self.sandboxes.new_vm_directory(id)?.join("ram"),
            },
            disk: disk
                .map(|(base, _)| Disk::new(base.clone(), self.sandboxes.overlay_paths(&overlays))),
            directory: self.sandboxes.new_run_directory(id)?,
            start: Start::Load,
            deadlines: self.host.deadlines,
            confinement: self.host.confinement_of(id, &handle.sandbox().options, files)?,
        };
        // The row is there before the process: whoever finds the process knows what it is of.
        self.sandboxes.announce(handle, None)?;
        let vm = self.host.driver.start(spec)?;
        self.sandboxes.announce(handle, Some(vm.as_ref()))?;
        handle.update(|sandbox| sandbox.pid = process_number(vm.pid()));
        Ok(Machine::new(vm, manifest.clone(), overlays, image.root_disk.map(|(_, bytes)| bytes)))
    }

    /// Maps the snapshot's memory, loads its device state, and lets the guest run.
    fn load(&self, row: &SnapshotRow, machine: &mut Machine) -> Result<(), EngineError> {
        let plan = self.snapshots.mapping_plan(row)?;
        let mut runs: Vec<MappedRun<'_>> = plan
            .runs
            .iter()
            .map(|part| MappedRun { file: plan.files[part.file].as_fd(), run: part.run })
            .collect();
        // Grouped by file: each group is one request to the shim. The runs do not overlap, so their
        // order is free.
        runs.sort_by_key(|run| (run.file.as_raw_fd(), run.run.start));
        let device_state = self.snapshots.open_device_state(row)?;
        machine.vm.load(&runs, &device_state)?;
        Ok(machine.vm.resume()?)
    }
}

/// The order matters: only a guest that has renewed itself may be seen.
async fn renew(agent: &GuestAgent, id: &SandboxId, tag: &SnapshotTag) -> Result<(), EngineError> {
    let unconfirmed = |source| EngineError::RenewalNotConfirmed { tag: tag.clone(), source };
    let identity = for_child(id)?;
    agent.hello(limit::RENEW_DEADLINE).await.map_err(unconfirmed)?;
    let renewal = agent.renew(&identity, limit::RENEW_DEADLINE).await.map_err(unconfirmed)?;
    for hook in renewal.hooks.iter().filter(|hook| hook.exit_code != 0) {
        let (hook, code) = (&hook.name, hook.exit_code);
        tracing::info!(sandbox = %id, ?hook, code, "an optional hook failed");
    }
    Ok(())
}
