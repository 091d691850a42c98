//! A registry as a carrier of artifacts, on a thread that may wait.
//!
//! Guarantees: waits end when the operation is cancelled; what goes wrong names the reference; a
//! part that the registry has is not sent.
//!
//! Does not do: decide who may push or pull, or check what comes: see the crate `artifact`.

use std::sync::Arc;

use forkd_artifact::{ArtifactError, Chunk, Documents, Incoming, Named, Outgoing};
use forkd_oci::{Digest, OciError, Reference, RegistryReference, Repository, limit};
use tokio::runtime::Handle;

use crate::EngineError;
use crate::operation::Running;

/// The place in a registry that a text names.
pub(crate) fn reference_of(text: &str) -> Result<RegistryReference, EngineError> {
    let bad = |problem: String| EngineError::BadRequest { field: "reference", problem };
    match text.parse::<Reference>().map_err(|error| bad(error.to_string()))? {
        // What holds a guest's memory does not go to where a short name happens to lead.
        Reference::Registry(found) if text.starts_with(&format!("{}/", found.registry)) => {
            Ok(found)
        }
        Reference::Registry(found) => {
            Err(bad(format!("name the registry too, as in `{found}`, if that is what you mean")))
        }
        _ => Err(bad(format!("`{text}` names files; use `forkd snapshot export` and `import`"))),
    }
}

/// A repository, and what waits for it.
struct Link {
    repository: Repository,
    reference: String,
    operation: Arc<Running>,
    runtime: Handle,
}

impl Link {
    /// To the repository of `reference`, as `open` gives it.
    fn to(
        open: fn(&RegistryReference) -> Result<Repository, OciError>,
        reference: &RegistryReference,
        operation: &Arc<Running>,
    ) -> Result<Self, EngineError> {
        let shown = reference.to_string();
        let repository = open(reference).map_err(|error| Self::failed(&shown, error))?;
        let (operation, runtime) = (Arc::clone(operation), Handle::current());
        Ok(Self { repository, reference: shown, operation, runtime })
    }

    fn failed(reference: &str, source: OciError) -> EngineError {
        EngineError::RegistryFailed { reference: reference.to_owned(), source: Arc::new(source) }
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, OciError>>) -> Result<T, ArtifactError> {
        let done = self.runtime.block_on(self.operation.unless_cancelled(work));
        let done = done.and_then(|done| done.map_err(|error| Self::failed(&self.reference, error)));
        done.map_err(|error| ArtifactError::Carrier(Box::new(error)))
    }
}

/// What a carrier of this module has failed with.
pub(super) fn cause(error: ArtifactError) -> Result<EngineError, ArtifactError> {
    match error {
        ArtifactError::Carrier(source) => match source.downcast::<EngineError>() {
            Ok(cause) => Ok(*cause),
            Err(source) => Err(ArtifactError::Carrier(source)),
        },
        other => Err(other),
    }
}

/// What a push has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Where the snapshot is now, with the digest of its image manifest.
    pub reference: String,
    /// Bytes of all blobs.
    pub bytes: u64,
    /// Bytes of those that the registry had not got.
    pub bytes_sent: u64,
}

/// Puts an artifact into a registry.
pub(super) struct RegistryWriter {
    link: Link,
    pushed: Pushed,
}

impl RegistryWriter {
    pub(super) fn new(
        reference: &RegistryReference,
        operation: &Arc<Running>,
    ) -> Result<Self, EngineError> {
        let link = Link::to(Repository::to_push, reference, operation)?;
        let pushed = Pushed { reference: link.reference.clone(), bytes: 0, bytes_sent: 0 };
        Ok(Self { link, pushed })
    }

    pub(super) fn pushed(self) -> Pushed {
        self.pushed
    }

    fn blob(&mut self, content: &[u8]) -> Result<(), ArtifactError> {
        let blob = Chunk { digest: Digest::of(content), size: content.len() as u64 };
        if self.wants(&blob)? { self.send(&blob, content) } else { Ok(()) }
    }

    fn send(&mut self, blob: &Chunk, content: &[u8]) -> Result<(), ArtifactError> {
        self.link.wait(self.link.repository.upload(&blob.digest, content))?;
        self.pushed.bytes_sent += blob.size;
        Ok(())
    }
}

impl Outgoing for RegistryWriter {
    fn begin(&mut self, documents: &Documents) -> Result<(), ArtifactError> {
        // Said before anything is sent.
        if documents.image.len() as u64 > limit::DOCUMENT_BYTES_MAX {
            let text = "its image manifest has more than the 4 MiB that registries take";
            return Err(ArtifactError::TooLarge(text.to_owned()));
        }
        self.blob(&documents.manifest)?;
        self.blob(&documents.signature)
    }

    fn wants(&mut self, part: &Chunk) -> Result<bool, ArtifactError> {
        self.pushed.bytes += part.size;
        let has = self.link.wait(self.link.repository.has(&part.digest))?;
        Ok(!has)
    }

    fn part(&mut self, part: &Chunk, bytes: Vec<u8>) -> Result<(), ArtifactError> {
        self.send(part, &bytes)
    }

    fn finish(&mut self, documents: &Documents) -> Result<(), ArtifactError> {
        let image = documents.image.clone();
        let digest = Digest::of(&image);
        self.link.wait(self.link.repository.put_manifest(Documents::IMAGE_TYPE, image))?;
        self.pushed.reference = format!("{}@{digest}", self.pushed.reference);
        Ok(())
    }
}

/// Gets an artifact from a registry.
pub(super) struct RegistryReader(Link);

impl RegistryReader {
    pub(super) fn new(
        reference: &RegistryReference,
        operation: &Arc<Running>,
    ) -> Result<Self, EngineError> {
        Link::to(Repository::to_pull, reference, operation).map(Self)
    }
}

impl Incoming for RegistryReader {
    fn documents(&mut self) -> Result<Documents, ArtifactError> {
        let image = self.0.wait(self.0.repository.manifest())?;
        let Named { manifest, signature, .. } = Named::of(&image)?;
        let (manifest, signature) = (self.part(&manifest)?, self.part(&signature)?);
        Ok(Documents { index: None, image, manifest, signature })
    }

    fn part(&mut self, part: &Chunk) -> Result<Vec<u8>, ArtifactError> {
        self.0.wait(self.0.repository.blob(&part.digest, part.size))
    }

    fn skip(&mut self, _: &Chunk) -> Result<Option<Vec<u8>>, ArtifactError> {
        Ok(None)
    }

    fn end(&mut self) -> Result<(), ArtifactError> {
        Ok(())
    }
}
