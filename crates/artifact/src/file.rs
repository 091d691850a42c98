//! A file or a pipe as a carrier: the layout of an OCI image in a tar archive.

use std::io::{Read, Write};

use crate::archive::{self, END_BYTES, Entries, blob_name, entry_bytes};
use crate::layout::{
    INDEX_BYTES_MAX, MANIFEST_BYTES_MAX, Order, SIGNATURE_BYTES_MAX, required_index,
};
use crate::{ArtifactError, Chunk, Digest, Documents, Incoming, Outgoing};

const LAYOUT_NAME: &str = "oci-layout";
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
const INDEX_NAME: &str = "index.json";

/// Writes a file.
pub(crate) struct FileWriter<'w>(pub(crate) &'w mut dyn Write);

impl Outgoing for FileWriter<'_> {
    fn begin(&mut self, documents: &Documents) -> Result<(), ArtifactError> {
        let mut write = |name: &str, content: &[u8]| {
            archive::write(self.0, name, content).map_err(ArtifactError::writing)
        };
        write(LAYOUT_NAME, LAYOUT)?;
        write(INDEX_NAME, required_index(documents)?)?;
        for content in [&documents.image, &documents.manifest, &documents.signature] {
            write(&blob_name(&Digest::of(content)), content)?;
        }
        Ok(())
    }

    fn wants(&mut self, _: &Chunk) -> Result<bool, ArtifactError> {
        Ok(true)
    }

    fn part(&mut self, part: &Chunk, bytes: Vec<u8>) -> Result<(), ArtifactError> {
        let written = archive::write(self.0, &blob_name(&part.digest), &bytes);
        written.map_err(ArtifactError::writing)
    }

    fn finish(&mut self, _: &Documents) -> Result<(), ArtifactError> {
        archive::finish(self.0).map_err(ArtifactError::writing)
    }
}

/// Bytes of the whole file.
pub(crate) fn file_bytes(documents: &Documents, order: &Order) -> u64 {
    let index = documents.index.as_deref().unwrap_or_default();
    let head = [LAYOUT, index, &documents.image, &documents.manifest, &documents.signature];
    let head = head.iter().map(|content| entry_bytes(content.len() as u64));
    let parts = order.parts().iter().map(|(chunk, _)| entry_bytes(chunk.size));
    head.chain(parts).sum::<u64>() + END_BYTES
}

/// Reads a file from its beginning to its end.
pub struct FileReader<R>(Entries<R>);

impl<R: Read> FileReader<R> {
    /// Of the file that `from` gives.
    pub const fn new(from: R) -> Self {
        Self(Entries::new(from))
    }

    /// The next blob, whose name is not known before its content.
    fn blob(&mut self, max: u64) -> Result<Vec<u8>, ArtifactError> {
        let (digest, content) = self.0.named_blob(max)?;
        if Digest::of(&content) == digest {
            Ok(content)
        } else {
            Err(ArtifactError::Digest(digest))
        }
    }
}

impl<R: Read> Incoming for FileReader<R> {
    fn documents(&mut self) -> Result<Documents, ArtifactError> {
        if self.0.sized(LAYOUT_NAME, LAYOUT.len() as u64)? != LAYOUT {
            let (found, wanted) = ("another layout".to_owned(), "version 1.0.0".to_owned());
            return Err(ArtifactError::Entry { found, wanted });
        }
        let index = Some(self.0.up_to(INDEX_NAME, INDEX_BYTES_MAX)?);
        let image = self.blob(MANIFEST_BYTES_MAX)?;
        let manifest = self.blob(MANIFEST_BYTES_MAX)?;
        let signature = self.blob(SIGNATURE_BYTES_MAX)?;
        Ok(Documents { index, image, manifest, signature })
    }

    fn part(&mut self, part: &Chunk) -> Result<Vec<u8>, ArtifactError> {
        self.0.sized(&blob_name(&part.digest), part.size)
    }

    fn skip(&mut self, part: &Chunk) -> Result<Option<Vec<u8>>, ArtifactError> {
        self.part(part).map(Some)
    }

    fn end(&mut self) -> Result<(), ArtifactError> {
        self.0.end()
    }
}
