//! From a snapshot to a running child.
//!
//! A child is handed out only after its guest agent confirmed that it has entropy, clock, names and
//! ids of its own; otherwise two machines would be the same one. Whatever fails before that, the VM
//! and everything that was made for it are removed.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use forkd_store::{Layer, SnapshotRow, StoreError};
use forkd_types::{OverlayId, SandboxId, SandboxState, SnapshotTag, limit};
use forkd_vmm::{Disk, MappedRun, RamBacking, Start, Vm, VmSpec};
use tokio::net::UnixStream;
use tracing::Instrument as _;

use super::record::row_of;
use super::task::SandboxTask;
use super::{Machine, SandboxHandle, blocking};
use crate::admission::Place;
use crate::engine::Inner;
use crate::guest::GuestAgent;
use crate::images::{self, Image};
use crate::{EngineError, Sandbox, SandboxOptions, identity, view};

/// How the part of a snapshot is called in errors that lies outside the store.
pub(crate) const IMAGE: &str = "the image";

/// Starts one child of the snapshot `tag`.
pub(crate) async fn start_child(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    place: Place,
    options: SandboxOptions,
) -> Result<Sandbox, EngineError> {
    let id = SandboxId::random();
    let span = tracing::info_span!("start", sandbox = %id, snapshot = %tag);
    start(inner, tag, id, place, options).instrument(span).await
}

async fn start(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    id: SandboxId,
    place: Place,
    options: SandboxOptions,
) -> Result<Sandbox, EngineError> {
    let begun = Instant::now();
    let row = inner.catalog.ready(tag)?;
    inner.require_compatible(&row)?;
    let sandbox = Sandbox {
        id: id.clone(),
        snapshot_tag: tag.clone(),
        created_at: SystemTime::now(),
        pid: None,
        state: SandboxState::Starting,
        branch_count: 0,
        hostname: id.to_string(),
        started_in: None,
        error: None,
        memory_limit_reached: false,
        options,
        expires_at: None,
    };
    let (handle, orders) = SandboxHandle::new(sandbox, place, Arc::clone(&inner.events));
    let handle = Arc::new(handle);
    // Known from here on, so that nobody removes the snapshot under it.
    inner.add_sandbox(Arc::clone(&handle));
    match bring_up(inner, &row, &handle).await {
        Ok(machine) => {
            handle.touch();
            handle.update(|sandbox| {
                sandbox.state = SandboxState::Running;
                sandbox.started_in = Some(begun.elapsed());
            });
            // From here on it is taken over if this daemon dies.
            inner.record(&handle, &machine)?;
            SandboxTask::spawn(Arc::clone(inner), Arc::clone(&handle), machine, orders)?;
            tracing::info!(took = ?begun.elapsed(), "started");
            Ok(handle.sandbox())
        }
        Err(error) => {
            handle.forget_agent();
            inner.discard_sandbox(&handle);
            inner.note_damage(tag, &error);
            Err(error)
        }
    }
}

pub(super) async fn bring_up(
    inner: &Arc<Inner>,
    row: &SnapshotRow,
    handle: &Arc<SandboxHandle>,
) -> Result<Machine, EngineError> {
    let permit = inner.starting.acquire().await;
    let _permit = permit.map_err(|_| EngineError::Internal("shutting down".to_owned()))?;
    let mut machine = {
        let (inner, row, handle) = (Arc::clone(inner), row.clone(), Arc::clone(handle));
        blocking(move || start_machine(&inner, &row, &handle)).await??
    };
    let socket = machine.vm.spec().agent_socket();
    // Before the device state is loaded: then the port is open for the guest as it was for the
    // source, and no byte is lost.
    let stream = UnixStream::connect(&socket)
        .await
        .map_err(|error| EngineError::Internal(format!("connect to the agent's port: {error}")))?;
    let agent = GuestAgent::connect(stream)?;
    let machine = {
        let (inner, row) = (Arc::clone(inner), row.clone());
        blocking(move || load(&inner, &row, &mut machine).map(|()| machine)).await??
    };
    let renewed = renew(&agent, handle.id(), &row.tag).await;
    if let Err(error) = renewed {
        // Silent because of its limit.
        return Err(blocking(move || machine.reached_limit()).await?.unwrap_or(error));
    }
    handle.set_agent(agent);
    Ok(machine)
}

/// The order matters: only a guest that has renewed itself may be seen.
async fn renew(agent: &GuestAgent, id: &SandboxId, tag: &SnapshotTag) -> Result<(), EngineError> {
    let unconfirmed = |source| EngineError::RenewalNotConfirmed { tag: tag.clone(), source };
    let identity = identity::for_child(id)?;
    agent.hello(limit::RENEW_DEADLINE).await.map_err(unconfirmed)?;
    let renewal = agent.renew(&identity, limit::RENEW_DEADLINE).await.map_err(unconfirmed)?;
    for hook in renewal.hooks.iter().filter(|hook| hook.exit_code != 0) {
        tracing::info!(sandbox = %id, hook = %hook.name, code = hook.exit_code, "a hook failed");
    }
    Ok(())
}

/// Starts the VMM with a disk of its own; no guest runs yet.
fn start_machine(
    inner: &Inner,
    row: &SnapshotRow,
    handle: &SandboxHandle,
) -> Result<Machine, EngineError> {
    let manifest = &row.manifest;
    let image = image_of(inner, row)?;
    let mut overlays = manifest.overlays.clone();
    if let Some((_, bytes)) = &image.root_disk {
        require_overlays(inner, row)?;
        overlays.push(inner.files.create_overlay(*bytes)?);
    }
    handle.set_files(manifest.layers.clone(), overlays.clone());
    handle.set_origin(manifest.clone());
    let spec = VmSpec {
        accelerator: inner.accelerator,
        memory: manifest.memory,
        vcpus: manifest.vcpus,
        boot: image.boot,
        ram: RamBacking::Layers { placeholder: inner.new_vm_directory(handle.id())?.join("ram") },
        disk: image
            .root_disk
            .as_ref()
            .map(|(base, _)| Disk::new(base.clone(), inner.overlay_paths(&overlays))),
        directory: inner.new_run_directory(handle.id())?,
        start: Start::Load,
        deadlines: inner.config.deadlines,
        confinement: inner.confiner.of(handle.id(), &handle.sandbox().options)?,
    };
    // The row is there before the process: whoever finds the process knows what it is of.
    inner.registry.put_sandbox(&row_of(handle, None, None)?)?;
    let vm = Vm::start(spec, &inner.tools)?;
    let pid = vm.pid();
    let started = identity::process_started(pid);
    let number = u32::try_from(pid.as_raw_nonzero().get()).ok();
    inner.registry.put_sandbox(&row_of(handle, number.zip(started), None)?)?;
    handle.update(|sandbox| sandbox.pid = number);
    Ok(Machine::new(vm, manifest.clone(), overlays, image.root_disk.map(|(_, bytes)| bytes)))
}

/// The image that a snapshot goes back to, as it was then.
pub(crate) fn image_of(inner: &Inner, row: &SnapshotRow) -> Result<Image, EngineError> {
    let image = images::find(&inner.config.image_dir, &row.manifest.image)?;
    if image.content_hash == row.manifest.image_hash {
        return Ok(image);
    }
    Err(EngineError::SnapshotDamaged {
        tag: row.tag.clone(),
        what: IMAGE,
        layer: image.name,
        state: "not the one that it was made from: it was built again".to_owned(),
    })
}

/// Refuses by name a snapshot of which a disk overlay is missing or damaged.
pub(crate) fn require_overlays(inner: &Inner, row: &SnapshotRow) -> Result<(), EngineError> {
    for id in &row.manifest.overlays {
        let sum = row.manifest.overlay_checksums.get(id);
        inner.files.require_overlay(id, sum).map_err(|error| damaged_layer(row, error))?;
    }
    Ok(())
}

/// Opens the layers of a snapshot, base first; one that is missing or damaged is refused by name.
pub(crate) fn open_layers(inner: &Inner, row: &SnapshotRow) -> Result<Vec<Layer>, EngineError> {
    let open = |id| inner.files.open_layer(id).map_err(|error| damaged_layer(row, error));
    row.manifest.layers.iter().map(open).collect()
}

/// The error for a snapshot of which a part is missing or damaged, as the store says.
pub(crate) fn damaged_layer(row: &SnapshotRow, error: StoreError) -> EngineError {
    damaged_part(row, &error).unwrap_or_else(|| error.into())
}

/// The same, if it is damage that the store tells of.
pub(crate) fn damaged_part(row: &SnapshotRow, error: &StoreError) -> Option<EngineError> {
    let layer = "the memory layer";
    let (what, id, state) = match error {
        StoreError::LayerMissing(id) => (layer, id.as_str(), "missing".to_owned()),
        StoreError::LayerDamaged { id, how } => (layer, id.as_str(), format!("damaged: {how}")),
        StoreError::DeviceStateDamaged { id, how } => {
            ("the device state", id.as_str(), how.clone())
        }
        StoreError::OverlayDamaged { id, how } => ("the disk overlay", id.as_str(), how.clone()),
        _ => return None,
    };
    let (tag, layer) = (row.tag.clone(), id.to_string());
    Some(EngineError::SnapshotDamaged { tag, what, layer, state })
}

/// Maps the snapshot's memory, loads its device state, and lets the guest run.
fn load(inner: &Arc<Inner>, row: &SnapshotRow, machine: &mut Machine) -> Result<(), EngineError> {
    let plan = view::plan(inner, row)?;
    let mut runs: Vec<MappedRun<'_>> = plan
        .runs
        .iter()
        .map(|part| MappedRun { file: plan.files[part.file].as_fd(), run: part.run })
        .collect();
    // Grouped by file: each group is one request to the shim. The runs do not overlap, so their
    // order is free.
    let number = |run: &MappedRun<'_>| std::os::fd::AsRawFd::as_raw_fd(&run.file);
    runs.sort_by_key(|run| (number(run), run.run.start));
    let device_state = open_device_state(inner, row)?;
    machine.vm.load(&runs, &device_state)?;
    Ok(machine.vm.resume()?)
}

fn open_device_state(inner: &Inner, row: &SnapshotRow) -> Result<File, EngineError> {
    let path = require_device_state(inner, row)?;
    File::open(&path).map_err(|source| StoreError::File { what: "open", path, source }.into())
}

/// Where a snapshot's device state is; one without is refused by name.
pub(crate) fn require_device_state(
    inner: &Inner,
    row: &SnapshotRow,
) -> Result<PathBuf, EngineError> {
    let Some(top) = row.manifest.layers.last() else {
        return Err(EngineError::Internal(format!("snapshot {} has no layers", row.tag)));
    };
    let sum = row.manifest.device_state.as_ref();
    inner.files.require_device_state(top, sum).map_err(|error| damaged_layer(row, error))
}

impl Inner {
    /// The directory for a VM's sockets and logs.
    pub(crate) fn new_run_directory(&self, id: &SandboxId) -> Result<PathBuf, EngineError> {
        create_directory(self.run_directory(id))
    }

    /// The directory for a VM's hot files.
    pub(crate) fn new_vm_directory(&self, id: &SandboxId) -> Result<PathBuf, EngineError> {
        create_directory(self.files.vm_directory(id))
    }

    /// Where overlays lie, in the given order.
    pub(crate) fn overlay_paths(&self, overlays: &[OverlayId]) -> Vec<PathBuf> {
        overlays.iter().map(|id| self.files.overlay(id)).collect()
    }
}

fn create_directory(path: PathBuf) -> Result<PathBuf, EngineError> {
    match fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(StoreError::File { what: "create directory", path, source }.into()),
    }
}
