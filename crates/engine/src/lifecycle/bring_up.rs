//! From a snapshot to a machine whose guest has an identity of its own.
//!
//! Whatever fails, the VM is gone; what was made for it on disk is the caller's to remove. Nothing
//! is written down here: if the daemon dies, the next one ends every VMM that no row names.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

use forkd_store::{FileSet, SnapshotManifest, SnapshotRow};
use forkd_types::{ByteCount, OverlayId, PhaseClock, SandboxId, StartPhase, limit};
use forkd_vmm::{Confinement, Disk, Greeting, MappedRun, RamBacking, Start, Vm, VmSpec, qemu};

use super::Lifecycle;
use crate::background::{blocking, turn};
use crate::guest::{GuestError, Renewing};
use crate::host::{connect_agent, for_child, process_number};
use crate::network::InheritedNetwork;
use crate::sandboxes::{Machine, SandboxHandle, Shape, StandbyVmm};
use crate::{EngineError, SandboxOptions};

impl Lifecycle {
    /// What a VMM must be started with to become a child of the snapshot in `row`, with a memory
    /// limit and a network of its own if `options` want them.
    pub(crate) async fn shape_of(
        &self,
        row: &SnapshotRow,
        options: &SandboxOptions,
    ) -> Result<Shape, EngineError> {
        let SnapshotManifest { memory, vcpus, network_device, .. } = row.manifest;
        let cpu = qemu::cpu_model_of(&row.manifest.machine.cpu_model);
        let (snapshots, row) = (Arc::clone(&self.snapshots), row.clone());
        let image = blocking(move || snapshots.image_of(&row)).await??;
        Ok(Shape {
            cpu,
            memory,
            vcpus,
            image: image.name,
            image_hash: image.content_hash,
            boot: image.boot,
            disk: image.root_disk,
            network_device,
            limits: self.host.confiner.limits(options.memory_limit, memory, vcpus),
            own_network: options.own_network,
        })
    }

    /// What the VMM with this id is started with: what its shape says, and a disk of `overlays`.
    pub(super) fn child_spec(
        &self,
        id: &SandboxId,
        shape: &Shape,
        overlays: &[OverlayId],
    ) -> Result<VmSpec, EngineError> {
        let disk_bytes = shape.disk.as_ref().map(|(_, bytes)| *bytes);
        let files = &self.snapshots.files;
        let confinement = self.host.confinement_of(id, shape.limits, disk_bytes, files);
        let overlays = self.sandboxes.overlay_paths(overlays);
        Ok(VmSpec {
            accelerator: self.host.accelerator,
            cpu: shape.cpu,
            memory: shape.memory,
            vcpus: shape.vcpus,
            boot: shape.boot.clone(),
            ram: RamBacking::Layers {
                placeholder: self.sandboxes.new_vm_directory(id)?.join("ram"),
            },
            disk: shape.disk.as_ref().map(|(base, _)| Disk::new(base.clone(), overlays)),
            network_device: shape.network_device,
            directory: self.sandboxes.new_run_directory(id)?,
            start: Start::Load,
            deadlines: self.host.deadlines,
            confinement: Confinement { own_network: shape.own_network, ..confinement },
        })
    }

    /// Makes a VM of the snapshot in `row`, of the VMM that stood by if there is one, and waits
    /// until its guest has renewed itself.
    pub(super) async fn bring_up(
        self: &Arc<Self>,
        row: &SnapshotRow,
        handle: &Arc<SandboxHandle>,
        shape: Shape,
        standby: Option<StandbyVmm>,
        clock: &mut PhaseClock<StartPhase>,
    ) -> Result<Machine, EngineError> {
        let _turn = turn(&self.host.starting).await?;
        clock.end(StartPhase::Claim);
        let is_fitted = standby.as_ref().is_some_and(StandbyVmm::is_fitted);
        let empty = standby.as_ref().and_then(|standby| standby.overlay.clone());
        let overlays = {
            let (this, row, handle) = (Arc::clone(self), row.clone(), Arc::clone(handle));
            let disk = shape.disk.clone();
            blocking(move || this.make_disk(&row, &handle, disk, empty)).await??
        };
        clock.end(StartPhase::Disk);
        let (this, of, named) = (Arc::clone(self), row.clone(), Arc::clone(handle));
        let (machine, agent) = match standby.and_then(StandbyVmm::give_away) {
            Some((vm, agent)) if is_fitted => {
                (introduce_vm(vm, row, handle, &shape, overlays), agent)
            }
            Some((vm, agent)) => {
                let taken = blocking(move || this.take(vm, &of, &named, &shape, overlays));
                (taken.await??, agent)
            }
            None => {
                let launch = blocking(move || this.launch(&of, &named, &shape, overlays));
                let machine = launch.await??;
                // Before the device state is loaded: then the port is open for the guest as it was
                // for the source, and no byte is lost.
                let agent = connect_agent(&machine.vm.spec().agent_socket()).await?;
                (machine, agent)
            }
        };
        clock.end(StartPhase::Launch);
        let machine = if is_fitted {
            machine
        } else {
            let (this, row) = (Arc::clone(self), row.clone());
            let mut machine = machine;
            blocking(move || this.map(&row, &mut *machine.vm).map(|()| machine)).await??
        };
        clock.end(StartPhase::Map);
        let mut machine = self.join_network(handle, machine, InheritedNetwork::read(row)?).await?;
        clock.end(StartPhase::Network);
        let mut machine = if is_fitted {
            machine
        } else {
            let device_state = self.snapshots.open_device_state(row)?;
            blocking(move || machine.vm.load(&device_state).map(|()| machine)).await??
        };
        clock.end(StartPhase::Load);
        // The guest finds it there when it runs, before any of its programs does.
        let renewing = agent.begin_renewal(for_child(handle.id())?, limit::RENEW_DEADLINE).await;
        let port = agent.clone();
        let resumed = move || {
            // One that was not sent is not waited for.
            let is_answered = || renewing.as_ref().map_or(true, Renewing::is_answered);
            let greeting = Greeting { is_read: &|| port.is_read(), is_answered: &is_answered };
            let in_time = machine.vm.resume_when(&greeting);
            in_time.map(|in_time| (machine, renewing, in_time))
        };
        let (machine, renewing, in_time) = blocking(resumed).await??;
        if !in_time {
            let sandbox = handle.id();
            tracing::info!(%sandbox, "programs ran before the guest had its identity");
        }
        clock.end(StartPhase::Resume);
        if let Err(source) = confirmed(renewing, handle.id()).await {
            let error = EngineError::RenewalNotConfirmed { tag: row.tag.clone(), source };
            // Silent because of its limit.
            return Err(blocking(move || machine.reached_limit()).await?.unwrap_or(error));
        }
        clock.end(StartPhase::Renew);
        handle.follow_programs(&agent);
        handle.set_agent(agent);
        Ok(machine)
    }

    /// The overlays of a child's disk: those of its snapshot and an empty one, which a VMM that
    /// stands by has already.
    fn make_disk(
        &self,
        row: &SnapshotRow,
        handle: &SandboxHandle,
        disk: Option<(PathBuf, ByteCount)>,
        empty: Option<OverlayId>,
    ) -> Result<Vec<OverlayId>, EngineError> {
        let (manifest, files) = (&row.manifest, &self.snapshots.files);
        let mut overlays = manifest.overlays.clone();
        if let Some((base, bytes)) = disk {
            self.snapshots.require_overlays(row, &base)?;
            overlays.push(empty.map_or_else(|| files.create_overlay(bytes), Ok)?);
        }
        files.claim_also(handle.id(), FileSet::new(manifest.layers.clone(), overlays.clone()));
        handle.set_origin(manifest.clone());
        Ok(overlays)
    }

    /// Starts the VMM; no guest runs yet.
    fn launch(
        &self,
        row: &SnapshotRow,
        handle: &SandboxHandle,
        shape: &Shape,
        overlays: Vec<OverlayId>,
    ) -> Result<Machine, EngineError> {
        let spec = self.child_spec(handle.id(), shape, &overlays)?;
        let vm = self.host.driver.start(spec)?;
        Ok(introduce_vm(vm, row, handle, shape, overlays))
    }

    /// Gives a VMM that stands by the state of the snapshot in `row`: disk, memory and devices.
    pub(super) fn fit(
        self: &Arc<Self>,
        standby: &mut StandbyVmm,
        row: &SnapshotRow,
    ) -> Result<(), EngineError> {
        let gone = || EngineError::Internal("a VMM that stood by is gone".to_owned());
        let vm = standby.vm.as_mut().ok_or_else(gone)?;
        if let Some((base, _)) = &standby.waiting.shape.disk {
            self.snapshots.require_overlays(row, base)?;
            vm.put_overlays_below(self.sandboxes.overlay_paths(&row.manifest.overlays))?;
        }
        self.map(row, &mut **vm)?;
        Ok(vm.load(&self.snapshots.open_device_state(row)?)?)
    }

    /// Gives a VMM that stood by the disk of its snapshot.
    fn take(
        &self,
        mut vm: Box<dyn Vm>,
        row: &SnapshotRow,
        handle: &SandboxHandle,
        shape: &Shape,
        overlays: Vec<OverlayId>,
    ) -> Result<Machine, EngineError> {
        vm.put_overlays_below(self.sandboxes.overlay_paths(&row.manifest.overlays))?;
        Ok(introduce_vm(vm, row, handle, shape, overlays))
    }

    /// Maps the snapshot's memory.
    fn map(&self, row: &SnapshotRow, vm: &mut dyn Vm) -> Result<(), EngineError> {
        let plan = self.snapshots.mapping_plan(row)?;
        let mut runs: Vec<MappedRun<'_>> = plan
            .runs
            .iter()
            .map(|part| MappedRun { file: plan.file(part).map(AsFd::as_fd), run: part.run })
            .collect();
        // Grouped by file: each group is one request to the shim. The runs do not overlap, so their
        // order is free.
        runs.sort_by_key(|run| (run.file.map(|file| file.as_raw_fd()), run.run.start));
        Ok(vm.map(&runs)?)
    }
}

fn introduce_vm(
    vm: Box<dyn Vm>,
    row: &SnapshotRow,
    handle: &SandboxHandle,
    shape: &Shape,
    overlays: Vec<OverlayId>,
) -> Machine {
    handle.update(|sandbox| sandbox.pid = process_number(vm.pid()));
    let disk = shape.disk.as_ref().map(|(_, bytes)| *bytes);
    Machine::new(vm, row.manifest.clone(), overlays, disk)
}

/// Waits for the guest. Only one that has renewed itself may be seen.
async fn confirmed(
    renewing: Result<Renewing, GuestError>,
    id: &SandboxId,
) -> Result<(), GuestError> {
    let renewal = renewing?.confirmed().await?;
    for hook in renewal.hooks.iter().filter(|hook| hook.exit_code != 0) {
        let (hook, code) = (&hook.name, hook.exit_code);
        tracing::info!(sandbox = %id, ?hook, code, "an optional hook failed");
    }
    Ok(())
}
