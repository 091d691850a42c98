//! A snapshot of what another daemon has exported, as a file or to a registry: see the crate
//! `artifact`.
//!
//! ```text
//! signature -> is the signer trusted? -> does it fit this host? -> tag -> parts -> ready
//! ```
//!
//! Guarantees: no memory is taken before all questions are answered. Whatever fails, the tag is
//! free again and no file is left; of one that its daemon does not live to end, the next daemon
//! removes the files and marks the tag as failed.

use std::io::Read;
use std::sync::Arc;

use forkd_artifact::{
    ArtifactError, ArtifactManifest, Contents, FileReader, Incoming, Machine, PublicKey,
    SignedArtifact, Unpacked,
};
use forkd_store::{InheritedLimits, SnapshotManifest};
use forkd_types::{OperationId, SnapshotStatus, SnapshotTag, TagName};

use super::Snapshots;
use super::already_here::known;
use super::catalog::Inherited;
use super::export::Told;
use super::registry;
use crate::background::{blocking, turn};
use crate::host::ArtifactMachines;
use crate::network::InheritedNetwork;
use crate::operation::{OperationKind, Running, Subject};
use crate::{Caller, EngineError, describe};

/// Of a foreign name, as much as is shown.
const IMAGE_NAME_CHARS: usize = 300;

/// Whose artifact may be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Of this daemon, and of those whose keys are trusted.
    Known,
    /// Of anybody, this once.
    Once,
}

/// A file to be imported.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// What the snapshot is to be called; as in the file if it is not said.
    pub tag: Option<SnapshotTag>,
    /// Whose file it may be.
    pub trust: Trust,
}

/// An artifact that may come in, under a tag that is taken for it.
pub(super) struct Admitted<C> {
    tag: SnapshotTag,
    key: PublicKey,
    unpacked: Unpacked<C>,
}

impl Snapshots {
    /// Makes a snapshot of a file, for `caller`, on a host that is one of `machines`.
    pub(crate) async fn import(
        self: &Arc<Self>,
        request: ImportRequest,
        caller: Caller,
        machines: ArtifactMachines,
        source: impl Read + Send + 'static,
    ) -> Result<SnapshotTag, EngineError> {
        let _turn = turn(&self.importing).await?;
        let snapshots = Arc::clone(self);
        let import = move || snapshots.import_blocking(&request, &caller, &machines, source);
        let tag = blocking(import).await??;
        self.publish_in_background(&tag);
        Ok(tag)
    }

    fn import_blocking(
        &self,
        request: &ImportRequest,
        caller: &Caller,
        machines: &ArtifactMachines,
        source: impl Read,
    ) -> Result<SnapshotTag, EngineError> {
        let id = OperationId::random();
        let admitted = self.admit(request, caller, machines, FileReader::new(source), &id)?;
        let subject = Subject::of_snapshot(&admitted.tag);
        let operation = self.operations.start(id, OperationKind::Import, subject);
        let span = tracing::info_span!("import", operation = %operation.id());
        let _entered = span.enter();
        let imported = self.take_in(admitted, &operation);
        operation.finish(&imported);
        imported
    }

    /// Asks all questions. When they are answered the tag is taken, for the operation `id`.
    pub(super) fn admit<C: Incoming>(
        &self,
        request: &ImportRequest,
        caller: &Caller,
        machines: &ArtifactMachines,
        carrier: C,
        id: &OperationId,
    ) -> Result<Admitted<C>, EngineError> {
        let signed = SignedArtifact::of(carrier).map_err(refused)?;
        let key = *signed.signer();
        match (request.trust, self.keys.require_trusted(&key)) {
            (Trust::Known, trusted) => drop(trusted?),
            (Trust::Once, trusted) => {
                let is_trusted = trusted.is_ok();
                tracing::info!(%key, is_trusted, "an artifact is trusted once");
            }
        }
        let unpacked = signed.unpack().map_err(refused)?;
        let artifact = unpacked.manifest();
        let manifest = self.fit(artifact, machines)?;
        let tag = match &request.tag {
            Some(tag) => tag.clone(),
            None => named(artifact, caller)?,
        };
        caller.check_new("tag", &tag)?;
        let limits = InheritedLimits {
            memory: artifact.limits.memory_bytes,
            own_network: artifact.limits.own_network,
        };
        let network = artifact.network.as_deref().map(carried).transpose()?;
        self.reserve(&tag, manifest, Inherited { limits, network }, id)?;
        Ok(Admitted { tag, key, unpacked })
    }

    /// Takes the parts in. Whatever fails, the tag is free again.
    pub(super) fn take_in(
        &self,
        admitted: Admitted<impl Incoming>,
        operation: &Running,
    ) -> Result<SnapshotTag, EngineError> {
        let Admitted { tag, key, unpacked } = admitted;
        match self.receive(&tag, unpacked, operation) {
            Ok(()) => {
                tracing::info!(snapshot = %tag, %key, "imported");
                Ok(tag)
            }
            Err(error) => {
                tracing::info!(snapshot = %tag, error = describe(&error), "not imported");
                if let Err(error) = self.catalog.remove(&tag) {
                    tracing::error!(%error, "a failed import keeps its tag");
                }
                Err(error)
            }
        }
    }

    /// What the snapshot is to be, before it has any parts; refuses by name what does not fit.
    pub(super) fn fit(
        &self,
        artifact: &ArtifactManifest,
        machines: &ArtifactMachines,
    ) -> Result<SnapshotManifest, EngineError> {
        let (vmm, needs) = (&artifact.machine.vmm, &artifact.machine);
        let here = machines.of(&vmm.cpu_model);
        let none = "none that is known".to_owned();
        let cpu = |machine: &Machine| machine.host_cpu.clone().unwrap_or_else(|| none.clone());
        for (what, needed, found) in [
            ("accelerator", &vmm.accelerator, &here.vmm.accelerator),
            ("version of QEMU", &vmm.vmm_version, &here.vmm.vmm_version),
            ("CPU model", &vmm.cpu_model, &here.vmm.cpu_model),
            ("machine type", &needs.machine_type, &here.machine_type),
            ("processor", &cpu(needs), &cpu(here)),
        ] {
            if needed != found {
                let problem = format!("it needs the {what} `{needed}`, here it is `{found}`");
                return Err(EngineError::ArtifactUnfit { problem });
            }
        }
        let wanted = &artifact.image;
        let image = match self.images.known(&wanted.name, &wanted.content_hash) {
            // The name of an image in the directory is plain, that of a pulled one is a reference.
            Err(EngineError::UnknownImage { .. }) if wanted.name.contains([':', '/']) => {
                let name: String = wanted.name.chars().take(IMAGE_NAME_CHARS).collect();
                let problem = format!(
                    "it was made from the image `{name}`, which this daemon has not pulled: build \
                     a template from it first, with `forkd template build --from {name}`"
                );
                return Err(EngineError::ArtifactUnfit { problem });
            }
            image => image?,
        };
        let disk_bytes = image.root_disk.map(|(_, bytes)| bytes);
        if image.content_hash != wanted.content_hash || disk_bytes != wanted.disk_bytes {
            let problem = format!(
                "it was made from another build of the image `{}`: copy the image's folder from \
                 the host that exported it",
                image.name
            );
            return Err(EngineError::ArtifactUnfit { problem });
        }
        Ok(SnapshotManifest {
            image: image.name,
            image_hash: image.content_hash,
            memory: artifact.memory_bytes,
            vcpus: artifact.vcpus,
            layers: Vec::new(),
            overlays: Vec::new(),
            overlay_checksums: std::collections::BTreeMap::new(),
            device_state: None,
            contents: forkd_store::KnownContents::default(),
            machine: vmm.clone(),
            network_device: needs.network_device,
            gateway_certificate: needs.gateway_certificate.clone(),
            private: false,
            parent_tag: None,
            branched_from: None,
        })
    }

    fn receive(
        &self,
        tag: &SnapshotTag,
        unpacked: Unpacked<impl Incoming>,
        operation: &Running,
    ) -> Result<(), EngineError> {
        operation.step("receive");
        let mut told = Told::new(operation);
        // Nobody removes them while the others come.
        let mut held = Vec::new();
        let mut find = |contents: &Contents| self.already_here(contents, &mut held);
        let mut progress = |done, all| told.at(done, all);
        let received = unpacked.receive(&self.files, &mut find, &mut progress);
        let received = received.map_err(|error| match error {
            ArtifactError::Stopped => EngineError::Cancelled { id: operation.id().clone() },
            other => refused(other),
        })?;
        operation.commit("the snapshot is complete")?;
        self.catalog.enter(tag, SnapshotStatus::Ready, |row| {
            row.manifest.layers.clone_from(&received.layers);
            row.manifest.overlays.clone_from(&received.overlays);
            row.manifest.device_state = received.device_state;
            row.manifest.contents = known(&received.contents, &row.manifest);
        })?;
        tracing::info!(bytes = received.taken_bytes, "parts have come");
        received.keep();
        Ok(())
    }
}

/// The caller's own snapshot that is called as in the file.
fn named(artifact: &ArtifactManifest, caller: &Caller) -> Result<SnapshotTag, EngineError> {
    let name = artifact.tag.parse::<TagName>().ok().filter(|name| name.plain().is_some());
    let problem = "the artifact has no usable tag: give one".to_owned();
    let name = name.ok_or(EngineError::BadRequest { field: "tag", problem })?;
    Ok(name.said_by(caller.owner()))
}

fn carried(network: &str) -> Result<String, EngineError> {
    let carried = InheritedNetwork::carried(network);
    let problem = |error| format!("its network: {error}");
    let refused = |error| EngineError::ArtifactRefused { problem: problem(error) };
    carried.map_err(refused)?.text()
}

/// What is wrong with the file, or with this host's store.
pub(super) fn refused(error: ArtifactError) -> EngineError {
    let error = match registry::cause(error) {
        Ok(cause) => return cause,
        Err(error) => error,
    };
    match error {
        ArtifactError::Store(error) if !error.is_damage() => error.into(),
        other => EngineError::ArtifactRefused { problem: describe(&other) },
    }
}
