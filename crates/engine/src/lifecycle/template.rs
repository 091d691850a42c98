//! From an image to a template: boot, warm up, freeze in place.
//!
//! The VM's RAM is a file in the hot directory from the start. When the guest is warm, its device
//! state is saved and the VMM ended without letting it run again: that file is then the base layer,
//! and nothing was copied.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::{LayerWriter, SnapshotManifest};
use forkd_types::{LayerId, OperationId, OverlayId, SnapshotStatus, limit};
use forkd_vmm::{Confinement, Disk, PausePlan, RamBacking, Start, Vm, VmSpec};
use tracing::Instrument as _;

use super::Lifecycle;
use crate::background::blocking;
use crate::guest::{ExecRequest, GuestAgent};
use crate::host::{Image, connect_agent};
use crate::operation::{OperationKind, Running, Subject};
use crate::sandboxes::ReservedId;
use crate::snapshots::Inherited;
use crate::{EngineError, ProgressSink, TemplateImage, TemplateRequest};

/// Bytes at the end of an output or a console that go into an error.
const SHOWN_BYTES: usize = 600;
/// For the device state of a template to be saved.
const FREEZE_DEADLINE: Duration = Duration::from_secs(60);

impl Lifecycle {
    /// Takes the tag for a template and gives the work of building it. Whatever fails, the tag is
    /// free again and nothing is left.
    pub(crate) fn begin_template(
        self: &Arc<Self>,
        request: TemplateRequest,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<impl Future<Output = Result<(), EngineError>> + Send + use<>, EngineError> {
        // One with a reference is only known when it has been pulled.
        let (image, image_hash) = match &request.image {
            TemplateImage::Named(name) => {
                let image = self.host.images.find(name)?;
                (image.name, image.content_hash)
            }
            TemplateImage::Reference(reference) => (reference.clone(), String::new()),
        };
        let manifest = SnapshotManifest {
            image,
            image_hash,
            memory: request.size.memory(),
            vcpus: request.size.vcpus(),
            layers: Vec::new(),
            overlays: Vec::new(),
            overlay_checksums: BTreeMap::new(),
            device_state: None,
            contents: forkd_store::KnownContents::default(),
            machine: self.host.machine_with(request.cpu),
            network_device: true,
            gateway_certificate: None,
            private: request.private,
            parent_tag: None,
            branched_from: None,
        };
        let id = OperationId::random();
        self.snapshots.reserve(&request.tag, manifest, Inherited::default(), &id)?;
        let subject = Subject::of_snapshot(&request.tag);
        let operation = self.snapshots.operations().start(id, OperationKind::Template, subject);
        let id = operation.id();
        let span = tracing::info_span!("template", snapshot = %request.tag, operation = %id);
        let this = Arc::clone(self);
        let work = async move {
            let steps = Steps { operation: &operation, progress: progress.as_ref() };
            let built = this.build(&request, &steps).await;
            if built.is_err()
                && let Err(error) = this.snapshots.catalog.remove(&request.tag)
            {
                tracing::error!(%error, "a failed template keeps its tag");
            }
            match &built {
                Ok(()) => tracing::info!("built"),
                Err(error) => tracing::info!(%error, "not built"),
            }
            operation.finish(&built);
            built
        };
        Ok(work.instrument(span))
    }

    async fn build(
        self: &Arc<Self>,
        request: &TemplateRequest,
        steps: &Steps<'_>,
    ) -> Result<(), EngineError> {
        let image = self.image(&request.image, steps).await?;
        steps.begin("start the VM")?;
        let image = {
            let images = self.host.images.clone();
            let checked = blocking(move || images.check(&image).map(|()| image)).await?;
            checked.map_err(|problem| EngineError::BadRequest { field: "image", problem })?
        };
        let files = &self.snapshots.files;
        let create = || LayerWriter::create(files, request.size.memory(), request.size.memory());
        let ram = files.with_room(create)?;
        let mut leftovers =
            Leftovers { lifecycle: self, id: self.sandboxes.reserve_id(), overlay: None };
        if let Some((_, bytes)) = &image.root_disk {
            leftovers.overlay = Some(files.create_overlay(*bytes)?);
        }
        let (image_name, image_hash) = (image.name.clone(), image.content_hash.clone());
        let spec = self.spec_of(request, image, ram.path(), &leftovers)?;
        let device_state = self.sandboxes.new_vm_directory(leftovers.id.id())?.join("device-state");
        let driver = Arc::clone(&self.host.driver);
        let vm = blocking(move || driver.start(spec)).await??;
        steps.begin("boot the guest")?;
        let booted = boot(&image_name, vm);
        let (vm, agent) = steps.operation.unless_cancelled(booted).await??;
        let trusted = steps.operation.unless_cancelled(self.make_trusted(&agent)).await?;
        if !request.warm.is_empty() {
            steps.begin("run the warm-up")?;
            steps.operation.unless_cancelled(warm(&agent, &request.warm)).await??;
        }
        steps.begin("freeze")?;
        freeze(vm, agent, device_state.clone()).await?;
        steps.operation.commit("the template is complete")?;
        let layer = ram.seal_base()?;
        let sealing = Sealing { layer: layer.index.id, image_name, image_hash, trusted };
        self.seal_template(request, sealing, device_state, &mut leftovers)?;
        self.snapshots.publish_in_background(&request.tag);
        Ok(())
    }

    /// The image, which is pulled and made into a disk if it is a reference.
    async fn image(
        self: &Arc<Self>,
        image: &TemplateImage,
        steps: &Steps<'_>,
    ) -> Result<Image, EngineError> {
        let images = &self.host.images;
        let reference = match image {
            TemplateImage::Named(name) => return images.find(name),
            TemplateImage::Reference(reference) => reference,
        };
        steps.begin("pull the image")?;
        let pulled = images.pulled.pull(reference, steps.operation.watcher()).await;
        steps.operation.check()?;
        let pulled = pulled?;
        steps.begin("make the disk")?;
        let image = images.pulled.with_disk(pulled, steps.operation.watcher()).await;
        self.remove_unused_disks().await;
        steps.operation.check()?;
        image
    }

    /// Removes disks of pulled images that no snapshot and no sandbox builds on.
    async fn remove_unused_disks(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let work = move || {
            // A sandbox may outlive its snapshot. What its machine consists of names its image.
            let sandboxes = match this.sandboxes.rows() {
                Ok(rows) => rows,
                Err(error) => return tracing::warn!(%error, "unused disks of images stay"),
            };
            let snapshots = this.snapshots.catalog.list();
            let of_sandboxes = sandboxes.iter().filter_map(|row| row.machine.as_ref());
            let machines: Vec<&String> = of_sandboxes.collect();
            this.host.images.pulled.remove_unused(|id| {
                snapshots.iter().any(|row| row.manifest.image_hash == id)
                    || machines.iter().any(|machine| machine.contains(id))
            });
        };
        if let Err(error) = blocking(work).await {
            tracing::error!(%error, "removing unused disks died");
        }
    }

    fn spec_of(
        &self,
        request: &TemplateRequest,
        image: Image,
        ram: PathBuf,
        leftovers: &Leftovers<'_>,
    ) -> Result<VmSpec, EngineError> {
        let overlay = leftovers.overlay.as_ref().map(|id| self.snapshots.files.overlay(id));
        let disk = image.root_disk.zip(overlay);
        let limits = self.host.confiner.limits(None, request.size.memory(), request.size.vcpus());
        let files = &self.snapshots.files;
        let disk_bytes = disk.as_ref().map(|((_, bytes), _)| *bytes);
        let confinement = self.host.confinement_of(leftovers.id.id(), limits, disk_bytes, files);
        // Its RAM is a file too.
        let file_max = confinement.file_max.map(|max| max.max(request.size.memory()));
        Ok(VmSpec {
            accelerator: self.host.accelerator,
            cpu: request.cpu,
            memory: request.size.memory(),
            vcpus: request.size.vcpus(),
            ram: RamBacking::File(ram),
            disk: disk.map(|((base, _), overlay)| Disk::new(base, [overlay])),
            network_device: true,
            directory: self.sandboxes.new_run_directory(leftovers.id.id())?,
            boot: image.boot,
            start: Start::Boot,
            deadlines: self.host.deadlines,
            confinement: Confinement { file_max, ..confinement },
        })
    }

    /// Makes the snapshot of a RAM file that is a layer now.
    fn seal_template(
        &self,
        request: &TemplateRequest,
        sealing: Sealing,
        device_state: PathBuf,
        leftovers: &mut Leftovers<'_>,
    ) -> Result<(), EngineError> {
        let Sealing { layer, image_name, image_hash, trusted } = sealing;
        let files = &self.snapshots.files;
        files.keep_device_state(&device_state, &layer)?;
        let sum = files.checksum_device_state(&layer)?;
        self.snapshots.catalog.enter(&request.tag, SnapshotStatus::Ready, |row| {
            (row.manifest.image, row.manifest.image_hash) = (image_name, image_hash);
            row.manifest.layers = vec![layer];
            row.manifest.device_state = Some(sum);
            row.manifest.gateway_certificate = trusted;
            row.manifest.overlays = leftovers.overlay.take().into_iter().collect();
        })?;
        Ok(())
    }
}

/// What a template consists of when its guest is frozen.
struct Sealing {
    layer: LayerId,
    image_name: String,
    image_hash: String,
    trusted: Option<String>,
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

/// What a build leaves in directories, removed when this is dropped.
struct Leftovers<'a> {
    lifecycle: &'a Lifecycle,
    id: ReservedId,
    /// Removed unless it becomes part of the snapshot.
    overlay: Option<OverlayId>,
}

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        self.lifecycle.sandboxes.remove_run_directory(self.id.id());
        let files = &self.lifecycle.snapshots.files;
        files.remove_vm_directory(self.id.id());
        if let Some(id) = &self.overlay {
            files.remove_overlay(id);
        }
    }
}

/// Waits for the guest agent.
async fn boot(image: &str, vm: Box<dyn Vm>) -> Result<(Box<dyn Vm>, GuestAgent), EngineError> {
    let agent = connect_agent(&vm.spec().agent_socket()).await?;
    match agent.hello(limit::BOOT_DEADLINE).await {
        Ok(_) => Ok((vm, agent)),
        Err(source) => {
            let console = tail(&vm.console().unwrap_or_default().bytes);
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
    mut vm: Box<dyn Vm>,
    agent: GuestAgent,
    device_state: PathBuf,
) -> Result<(), EngineError> {
    let quiet = agent.quiesce(limit::QUIESCE_DEADLINE).await?;
    let frozen = blocking(move || -> Result<(), EngineError> {
        let plan = PausePlan { device_state, overlay: None };
        vm.prepare_pause(plan)?.stop()?.save_device_state()?.kill();
        Ok(())
    });
    let frozen = tokio::time::timeout(FREEZE_DEADLINE, frozen).await;
    drop(quiet);
    frozen.map_err(|_| EngineError::Internal("freezing a template took a minute".to_owned()))??
}

fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(SHOWN_BYTES);
    let text = String::from_utf8_lossy(&bytes[start..]);
    text.trim().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}
