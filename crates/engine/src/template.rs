//! From an image to a template: boot, warm up, freeze in place.
//!
//! The VM's RAM is a file in the hot directory from the start. When the guest is warm, its device
//! state is saved and the VMM ended without letting it run again: that file is then the base layer,
//! and nothing was copied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::{LayerWriter, SnapshotManifest};
use forkd_types::{OperationId, OverlayId, SandboxId, SnapshotStatus, limit};
use forkd_vmm::{Confinement, Disk, PausePlan, RamBacking, Start, Vm, VmSpec};
use tokio::net::UnixStream;
use tracing::Instrument as _;

use crate::branch;
use crate::engine::Inner;
use crate::guest::{ExecRequest, GuestAgent};
use crate::images::{self, Image};
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::blocking;
use crate::{EngineError, ProgressSink, TemplateRequest};

/// Bytes at the end of an output or a console that go into an error.
const SHOWN_BYTES: usize = 600;

/// Takes the tag for a template and gives the work of building it. Whatever fails, the tag is free
/// again and nothing is left.
pub(crate) fn begin(
    inner: &Arc<Inner>,
    request: TemplateRequest,
    progress: Arc<dyn ProgressSink>,
) -> Result<impl Future<Output = Result<(), EngineError>> + Send + use<>, EngineError> {
    check(&request)?;
    let image = images::find(&inner.config.image_dir, &request.image)?;
    let manifest = SnapshotManifest {
        image: image.name.clone(),
        image_hash: image.content_hash.clone(),
        memory: request.memory,
        vcpus: request.vcpus,
        layers: Vec::new(),
        overlays: Vec::new(),
        overlay_checksums: BTreeMap::new(),
        device_state: None,
        machine: inner.machine.clone(),
        parent_tag: None,
        branched_from: None,
    };
    let id = OperationId::random();
    inner.reserve(&request.tag, manifest, &id)?;
    let subject = Subject { snapshot: Some(request.tag.clone()), sandbox: None };
    let operation = inner.operations.start(id, OperationKind::Template, subject);
    let id = operation.id();
    let span = tracing::info_span!("template", snapshot = %request.tag, operation = %id);
    let inner = Arc::clone(inner);
    let work = async move {
        let steps = Steps { operation: &operation, progress: progress.as_ref() };
        let built = build_reserved(&inner, &request, image, &steps).await;
        if built.is_err()
            && let Err(error) = inner.catalog.remove(&inner.registry, &request.tag)
        {
            tracing::error!(%error, "a failed template keeps its tag");
        }
        match &built {
            Ok(()) => tracing::info!("built"),
            Err(error) => tracing::info!(%error, "not built"),
        }
        operation.end(&built);
        built
    };
    Ok(work.instrument(span))
}

/// Where the steps of a build are told, and its cancellation is heard of.
struct Steps<'a> {
    operation: &'a Running,
    progress: &'a dyn ProgressSink,
}

impl Steps<'_> {
    /// A new step begins, unless the build was cancelled.
    fn begin(&self, step: &'static str) -> Result<(), EngineError> {
        self.operation.check()?;
        self.operation.step(step);
        self.progress.step(step);
        Ok(())
    }
}

fn check(request: &TemplateRequest) -> Result<(), EngineError> {
    let mib = request.memory.get() >> 20;
    if !(limit::MEM_SIZE_MIB_MIN..=limit::MEM_SIZE_MIB_MAX).contains(&mib) {
        let (min, max) = (limit::MEM_SIZE_MIB_MIN, limit::MEM_SIZE_MIB_MAX);
        let problem = format!("{mib} MiB is not between {min} and {max} MiB");
        return Err(EngineError::BadRequest { field: "mem_size_mib", problem });
    }
    if !(1..=limit::VCPUS_MAX).contains(&request.vcpus) {
        let problem = format!("{} is not between 1 and {}", request.vcpus, limit::VCPUS_MAX);
        return Err(EngineError::BadRequest { field: "vcpus", problem });
    }
    Ok(())
}

/// A template's VM while it is being made. Its directories go when it does.
struct Nursery<'a> {
    inner: &'a Inner,
    id: SandboxId,
    /// Removed unless it becomes part of the snapshot.
    overlay: Option<OverlayId>,
}

impl Drop for Nursery<'_> {
    fn drop(&mut self) {
        self.inner.remove_run_directory(&self.id);
        self.inner.files.remove_vm_directory(&self.id);
        if let Some(id) = &self.overlay {
            self.inner.files.remove_overlay(id);
        }
    }
}

async fn build_reserved(
    inner: &Arc<Inner>,
    request: &TemplateRequest,
    image: Image,
    steps: &Steps<'_>,
) -> Result<(), EngineError> {
    steps.begin("start the VM")?;
    let create = || LayerWriter::create(&inner.files, request.memory, request.memory);
    let ram = inner.with_room(create)?;
    let mut nursery = Nursery { inner, id: SandboxId::random(), overlay: None };
    if let Some((_, bytes)) = &image.root_disk {
        nursery.overlay = Some(inner.files.create_overlay(*bytes)?);
    }
    let spec = VmSpec {
        accelerator: inner.accelerator,
        memory: request.memory,
        vcpus: request.vcpus,
        ram: RamBacking::File(ram.path()),
        disk: image
            .root_disk
            .as_ref()
            .zip(nursery.overlay.as_ref())
            .map(|((base, _), id)| Disk::new(base.clone(), [inner.files.overlay(id)])),
        directory: inner.new_run_directory(&nursery.id)?,
        boot: image.boot,
        start: Start::Boot,
        deadlines: inner.config.deadlines,
        confinement: Confinement::default(),
    };
    let device_state = inner.new_vm_directory(&nursery.id)?.join("device-state");
    let tools = inner.tools.clone();
    let vm = blocking(move || Vm::start(spec, &tools)).await??;
    steps.begin("boot the guest")?;
    let booted = boot(inner, &nursery.id, &image.name, vm);
    let (vm, agent) = steps.operation.unless_cancelled(booted).await??;
    if !request.warm.is_empty() {
        steps.begin("run the warm-up")?;
        steps.operation.unless_cancelled(warm(&agent, &request.warm)).await??;
    }
    steps.begin("freeze")?;
    freeze(vm, agent, device_state.clone()).await?;
    steps.operation.commit("the template is complete")?;
    let layer = ram.seal_base()?;
    let id = layer.index.id;
    let target = inner.files.hot_device_state(&id);
    let kept = std::fs::rename(&device_state, &target);
    kept.map_err(|source| forkd_store::StoreError::File { what: "keep", path: target, source })?;
    let sum = inner.files.checksum_device_state(&id)?;
    inner.catalog.update(&inner.registry, &request.tag, |row| {
        row.manifest.layers = vec![id];
        row.manifest.device_state = Some(sum);
        row.manifest.overlays = nursery.overlay.take().into_iter().collect();
        row.status = SnapshotStatus::Ready;
    })?;
    branch::publish_in_background(inner, &request.tag);
    Ok(())
}

/// Waits for the guest agent.
async fn boot(
    inner: &Inner,
    id: &SandboxId,
    image: &str,
    vm: Vm,
) -> Result<(Vm, GuestAgent), EngineError> {
    let socket = vm.spec().agent_socket();
    let stream = UnixStream::connect(&socket)
        .await
        .map_err(|error| EngineError::Internal(format!("connect to the agent's port: {error}")))?;
    let agent = GuestAgent::connect(stream)?;
    match agent.hello(limit::BOOT_DEADLINE).await {
        Ok(_) => Ok((vm, agent)),
        Err(source) => {
            let console = std::fs::read(inner.run_directory(id).join("console.log"));
            let console = tail(&console.unwrap_or_default());
            Err(EngineError::BootFailed { image: image.to_owned(), console, source })
        }
    }
}

async fn warm(agent: &GuestAgent, args: &[String]) -> Result<(), EngineError> {
    let mut request = ExecRequest::new(args.iter().cloned());
    request.timeout = limit::WARM_DEADLINE;
    let output = agent.exec(request).await?;
    if output.exit_code == 0 {
        return Ok(());
    }
    let words = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let words = if output.timed_out { b"it ran out of time".as_slice() } else { words };
    Err(EngineError::WarmFailed { exit_code: output.exit_code, output: tail(words) })
}

/// Saves the device state and ends the VMM; the guest never runs again.
async fn freeze(
    mut vm: Vm,
    agent: GuestAgent,
    device_state: std::path::PathBuf,
) -> Result<(), EngineError> {
    let quiet = agent.quiesce(limit::QUIESCE_DEADLINE).await?;
    let frozen = blocking(move || -> Result<(), EngineError> {
        let plan = PausePlan { device_state, overlay: None };
        let mut paused = vm.prepare_pause(plan)?.pause()?;
        paused.save_device_state()?;
        paused.end();
        Ok(())
    });
    let frozen = tokio::time::timeout(Duration::from_secs(60), frozen).await;
    drop(quiet);
    frozen.map_err(|_| EngineError::Internal("freezing a template took a minute".to_owned()))??
}

fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(SHOWN_BYTES);
    let text = String::from_utf8_lossy(&bytes[start..]);
    text.trim().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}
