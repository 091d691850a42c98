//! How an artifact travels: three documents, then its parts, each once, in the manifest's order.
//!
//! A file or a pipe is one carrier (`file`), a registry another, which is not in this crate.
//! `export` and `import` know neither. What a carrier brings is not trusted: `import` checks it.

use crate::{ArtifactError, Chunk};

/// What an artifact has besides its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// Names the image manifest and the tag. A registry has none: it knows the tag itself.
    pub index: Option<Vec<u8>>,
    /// Lists everything that follows; what a registry reads.
    pub image: Vec<u8>,
    /// What the snapshot consists of; what forkd reads.
    pub manifest: Vec<u8>,
    /// Over the manifest.
    pub signature: Vec<u8>,
}

impl Documents {
    /// The media type of the image manifest.
    pub const IMAGE_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
}

/// Takes an artifact away.
pub trait Outgoing {
    /// Takes the documents, before any part.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn begin(&mut self, documents: &Documents) -> Result<(), ArtifactError>;

    /// Whether the other side has not got this part yet. Asked once for each, before it is made.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn wants(&mut self, part: &Chunk) -> Result<bool, ArtifactError>;

    /// Takes a part that is wanted.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn part(&mut self, part: &Chunk, bytes: Vec<u8>) -> Result<(), ArtifactError>;

    /// That was all: only now does the other side have an artifact.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn finish(&mut self, documents: &Documents) -> Result<(), ArtifactError>;
}

/// Brings an artifact.
pub trait Incoming {
    /// Brings the documents, each of bounded length.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn documents(&mut self) -> Result<Documents, ArtifactError>;

    /// Brings a part of `part.size` bytes. Asked once for each that is not passed by, in the
    /// manifest's order.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn part(&mut self, part: &Chunk) -> Result<Vec<u8>, ArtifactError>;

    /// Passes a part by that nobody needs. Gives its bytes if they come anyway.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn skip(&mut self, part: &Chunk) -> Result<Option<Vec<u8>>, ArtifactError>;

    /// Nothing else may come.
    ///
    /// # Errors
    /// See [`ArtifactError`].
    fn end(&mut self) -> Result<(), ArtifactError>;
}
