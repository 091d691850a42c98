//! From a carrier to a store, in three steps, between which the caller decides:
//!
//! ```text
//! SignedArtifact   the documents were read, the signature is right: is the signer trusted?
//! Unpacked         the manifest was understood: does it fit this host, is there room?
//! Received         all parts are in the store: make a snapshot of them, or drop them
//! ```
//!
//! Layers and overlays that come get names of their own, so nothing that another snapshot lists is
//! ever written to. What is here already is shared only if it holds the same by digest, whatever
//! its name is.

use std::io::Read;

use forkd_store::StoreFiles;

use crate::chunk::Decompressor;
use crate::file::FileReader;
use crate::layout::Order;
use crate::receiver::{AlreadyHere, Received, Receiver};
use crate::{
    ArtifactError, ArtifactManifest, Chunk, Contents, Digest, Documents, Incoming, PublicKey,
    Signature,
};

/// An artifact whose documents are here. Nothing but the signature was looked into yet.
pub struct SignedArtifact<C> {
    carrier: C,
    documents: Documents,
    signer: PublicKey,
}

impl<R: Read> SignedArtifact<FileReader<R>> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    pub fn read(from: R) -> Result<Self, ArtifactError> {
        Self::of(FileReader::new(from))
    }
}

impl<C: Incoming> SignedArtifact<C> {
    /// Gets the documents from a carrier.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    pub fn of(mut carrier: C) -> Result<Self, ArtifactError> {
        let documents = carrier.documents()?;
        let signature = Signature::decode(&documents.signature);
        let signer = signature.and_then(|read| read.verify(&documents.manifest));
        let signer = signer.map_err(ArtifactError::Signature)?;
        Ok(Self { carrier, documents, signer })
    }

    /// Who signed the manifest.
    #[must_use]
    pub const fn signer(&self) -> &PublicKey {
        &self.signer
    }

    /// Reads the manifest.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    pub fn unpack(self) -> Result<Unpacked<C>, ArtifactError> {
        let found = self.documents;
        let manifest = ArtifactManifest::decode(&found.manifest)?;
        let order = Order::of(&manifest)?;
        let (text, signature) = (found.manifest.clone(), found.signature.clone());
        let documents = Documents::new(&manifest.tag, text, signature, &order)?;
        if !documents.are(&found) {
            let wanted = "that of the snapshot".to_owned();
            let found = "an index or image manifest of something else".to_owned();
            return Err(ArtifactError::Entry { found, wanted });
        }
        Ok(Unpacked { carrier: self.carrier, manifest, order })
    }
}

/// An artifact whose manifest is known.
pub struct Unpacked<C> {
    carrier: C,
    manifest: ArtifactManifest,
    order: Order,
}

impl<C: Incoming> Unpacked<C> {
    /// What the artifact holds.
    #[must_use]
    pub const fn manifest(&self) -> &ArtifactManifest {
        &self.manifest
    }

    #[cfg(test)]
    pub(crate) fn part_count(&self) -> usize {
        self.order.parts().len()
    }

    /// Reads all parts into a store that are not there: `find` is told what the artifact holds, and
    /// says what of it is.
    ///
    /// # Errors
    /// See [`ArtifactError`]; also what `progress` ends with, which is told the bytes of parts that
    /// were read, and of how many. No file is left then.
    pub fn receive<'a>(
        mut self,
        files: &'a StoreFiles,
        find: &mut dyn FnMut(&Contents) -> AlreadyHere,
        progress: &mut dyn FnMut(u64, u64) -> Result<(), ArtifactError>,
    ) -> Result<Received<'a>, ArtifactError> {
        let mut receiver = Receiver::new(files, &self.manifest, find);
        let mut decompressor = Decompressor::new()?;
        let (mut done, mut all) = (0, self.order.bytes());
        for (chunk, uses) in self.order.parts() {
            progress(done, all)?;
            let needed = receiver.needed(uses)?;
            let Some(first) = needed.first() else {
                if let Some(part) = self.carrier.skip(chunk)? {
                    checked(part, chunk)?;
                }
                all -= chunk.size;
                continue;
            };
            let part = checked(self.carrier.part(chunk)?, chunk)?;
            let length = receiver.length_of(*first)?;
            let content = decompressor.decompress(chunk.digest, &part, length)?;
            receiver.put(&needed, chunk.digest, &content)?;
            done += chunk.size;
        }
        progress(done, all)?;
        self.carrier.end()?;
        receiver.finish(done)
    }
}

/// A part as the manifest names it.
fn checked(part: Vec<u8>, chunk: &Chunk) -> Result<Vec<u8>, ArtifactError> {
    if part.len() as u64 == chunk.size && Digest::of(&part) == chunk.digest {
        return Ok(part);
    }
    Err(ArtifactError::Digest(chunk.digest))
}
