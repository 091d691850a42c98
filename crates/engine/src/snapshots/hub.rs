//! What registries have that was pushed from a daemon, before anything of it is fetched.
//!
//! Guarantees: no memory and no disk is fetched; a signature is checked before what was signed is
//! told; a search asks for so many manifests and no more, and says when it has not seen all.
//!
//! Does not do: keep anything; look into images.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_artifact::{
    ArtifactError, ArtifactManifest, Chunk, Documents, Incoming, Named, PublicKey, SignedArtifact,
};
use forkd_oci::{Catalog, Digest, OciError, RegistryReference, Repository};

use super::Snapshots;
use super::import::refused;
use crate::host::ArtifactMachines;
use crate::{EngineError, describe};

/// Manifests that one search looks at.
const MANIFESTS_MAX: usize = 1000;
/// A search that takes longer ends with what it has found.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who has signed an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signer {
    /// This daemon.
    Own,
    /// One whose key is trusted under this name.
    Trusted(String),
    /// Somebody else.
    Unknown,
}

/// A snapshot in a registry.
#[derive(Debug, Clone, PartialEq)]
pub struct HubSnapshot {
    /// Where it is, with the digest of its image manifest.
    pub reference: String,
    /// What it consists of, as its signer says.
    pub manifest: ArtifactManifest,
    /// Who says so.
    pub key: PublicKey,
    /// Whether that one is trusted.
    pub signer: Signer,
    /// Bytes of all its parts there.
    pub bytes: u64,
    /// Why it does not start on this host, if it does not.
    pub unfit: Option<String>,
}

/// A tag of a registry that names a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubEntry {
    /// The tag, in full.
    pub reference: String,
    /// Of its image manifest.
    pub digest: Digest,
    /// Bytes of all its parts.
    pub bytes: u64,
}

/// Snapshots that were found in a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubListing {
    /// In the order of the registry.
    pub snapshots: Vec<HubEntry>,
    /// There are no others.
    pub is_complete: bool,
}

impl Snapshots {
    /// Looks at what `from` names, for a host that is one of `machines`.
    pub(crate) async fn hub_snapshot(
        &self,
        from: &RegistryReference,
        machines: &ArtifactMachines,
    ) -> Result<HubSnapshot, EngineError> {
        let failed = |error| failed(from.to_string(), error);
        let repository = Repository::to_pull(from).map_err(failed)?;
        let image = repository.manifest().await.map_err(failed)?;
        let named = Named::of(&image).map_err(refused)?;
        let blob = async |part: &Chunk| repository.blob(&part.digest, part.size).await;
        let documents = Documents {
            index: None,
            manifest: blob(&named.manifest).await.map_err(failed)?,
            signature: blob(&named.signature).await.map_err(failed)?,
            image,
        };
        let digest = Digest::of(&documents.image);
        let signed = SignedArtifact::of(HeadOnly(Some(documents))).map_err(refused)?;
        let key = *signed.signer();
        let signer = match self.keys.require_trusted(&key) {
            Ok(None) => Signer::Own,
            Ok(Some(name)) => Signer::Trusted(name),
            Err(EngineError::KeyNotTrusted { .. }) => Signer::Unknown,
            Err(error) => return Err(error),
        };
        let unpacked = signed.unpack().map_err(refused)?;
        let manifest = unpacked.manifest().clone();
        let unfit = self.fit(&manifest, machines).err().map(|error| describe(&error));
        let reference = RegistryReference { digest: Some(digest), ..from.clone() };
        let reference = reference.to_string();
        Ok(HubSnapshot { reference, manifest, key, signer, bytes: named.bytes, unfit })
    }
}

/// Looks for snapshots in the registry at `host`, in repositories with `term` in their name.
pub(crate) async fn search(host: &str, term: &str) -> Result<HubListing, EngineError> {
    let failed = |error| match error {
        error @ (OciError::Reference(_) | OciError::Unsupported { .. }) => {
            EngineError::BadRequest { field: "registry", problem: error.to_string() }
        }
        error => failed(host.to_owned(), error),
    };
    let catalog = Catalog::of(host).map_err(failed)?;
    let begun = Instant::now();
    let repositories = catalog.repositories().await.map_err(failed)?;
    let mut found = HubListing { snapshots: Vec::new(), is_complete: repositories.are_all };
    let mut seen = 0;
    for repository in repositories.names.iter().filter(|name| name.contains(term)) {
        let tags = match catalog.tags(repository).await {
            // It has none any more, or is not ours to see.
            Err(OciError::NotFound(_) | OciError::Refused { .. }) => continue,
            tags => tags.map_err(failed)?,
        };
        found.is_complete &= tags.are_all;
        for tag in &tags.names {
            let Some(reference) = catalog.reference(repository, tag) else { continue };
            if seen >= MANIFESTS_MAX || begun.elapsed() > PATIENCE {
                found.is_complete = false;
                return Ok(found);
            }
            seen += 1;
            let (digest, image) = match catalog.manifest(&reference).await {
                Err(OciError::NotFound(_) | OciError::Refused { .. }) => continue,
                manifest => manifest.map_err(failed)?,
            };
            let entry = |named: Named| {
                let (reference, bytes) = (reference.to_string(), named.bytes);
                HubEntry { reference, digest, bytes }
            };
            // What is no snapshot is an image, or somebody else's artifact.
            found.snapshots.extend(Named::of(&image).ok().map(entry));
        }
    }
    Ok(found)
}

fn failed(reference: String, source: OciError) -> EngineError {
    EngineError::RegistryFailed { reference, source: Arc::new(source) }
}

/// An artifact of which only the documents are here.
struct HeadOnly(Option<Documents>);

impl Incoming for HeadOnly {
    fn documents(&mut self) -> Result<Documents, ArtifactError> {
        self.0.take().ok_or(ArtifactError::Stopped)
    }

    fn part(&mut self, _: &Chunk) -> Result<Vec<u8>, ArtifactError> {
        Err(ArtifactError::Stopped)
    }

    fn skip(&mut self, _: &Chunk) -> Result<Option<Vec<u8>>, ArtifactError> {
        Ok(None)
    }

    fn end(&mut self) -> Result<(), ArtifactError> {
        Ok(())
    }
}
