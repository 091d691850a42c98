//! One repository of a registry, for artifacts that are no images: blobs that fit in memory, and a
//! manifest that names them.
//!
//! Guarantees: a blob that is got has its digest and its size, and no more than that is held. What
//! breaks off goes on where it was, so often and so long and no further. Nothing is sent that the
//! repository has.
//!
//! Does not do: know what the blobs are; remove what an upload that failed has left there, which
//! registries collect themselves.

use std::time::Duration;

use crate::reference::RegistryReference;
use crate::registry::{ATTEMPTS, Growing, Registry, Rights};
use crate::source::Source as _;
use crate::{Digest, OciError};

/// For all attempts at one blob: a registry that sends a byte a minute is given up.
const DEADLINE: Duration = Duration::from_secs(600);

/// A repository, and the artifact in it that a reference names.
pub struct Repository(Registry);

impl Repository {
    /// To get the artifact of `reference`.
    ///
    /// # Errors
    /// [`OciError::Unreachable`] when certificates cannot be read.
    pub fn to_pull(reference: &RegistryReference) -> Result<Self, OciError> {
        Registry::new(reference, Rights::Pull).map(Self)
    }

    /// To put an artifact where `reference` says.
    ///
    /// # Errors
    /// As [`Self::to_pull`].
    pub fn to_push(reference: &RegistryReference) -> Result<Self, OciError> {
        Registry::new(reference, Rights::Push).map(Self)
    }

    /// The manifest that the reference names; of its digest, if the reference has one.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn manifest(&self) -> Result<Vec<u8>, OciError> {
        self.0.within(DEADLINE, self.0.root()).await
    }

    /// A blob of `size` bytes.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, OciError> {
        self.0.within(DEADLINE, self.blob_in_time(digest, size)).await
    }

    async fn blob_in_time(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, OciError> {
        let mut bytes = Vec::new();
        let mut attempt = 1;
        loop {
            let had = bytes.len();
            match self.0.fetch(digest, size, had as u64, &mut bytes).await {
                Err(error @ OciError::Unreachable { .. }) if attempt < ATTEMPTS => {
                    tracing::debug!(%error, has = bytes.len(), "goes on where it broke off");
                }
                fetched => {
                    fetched?;
                    let found = Digest::of(&bytes);
                    if found == *digest {
                        return Ok(bytes);
                    }
                    // What came before it broke off may have been the damaged part.
                    if had == 0 || attempt >= ATTEMPTS {
                        let what = "a blob".to_owned();
                        return Err(OciError::Digest { what, wanted: *digest, found });
                    }
                    bytes.clear();
                }
            }
            attempt += 1;
        }
    }

    /// Whether the repository has a blob.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn has(&self, digest: &Digest) -> Result<bool, OciError> {
        self.0.within(DEADLINE, self.0.has(digest)).await
    }

    /// Puts a blob there.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn upload(&self, digest: &Digest, content: &[u8]) -> Result<(), OciError> {
        self.0.within(DEADLINE, self.0.upload(digest, content)).await
    }

    /// Puts the manifest there, under the tag of the reference. All that it names must be there.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn put_manifest(&self, kind: &str, content: Vec<u8>) -> Result<(), OciError> {
        self.0.within(DEADLINE, self.0.put_manifest(kind, content)).await
    }
}

impl Growing for Vec<u8> {
    fn append(&mut self, piece: &[u8]) -> std::io::Result<()> {
        self.extend_from_slice(piece);
        Ok(())
    }

    fn begin_anew(&mut self) -> std::io::Result<()> {
        self.clear();
        Ok(())
    }
}
