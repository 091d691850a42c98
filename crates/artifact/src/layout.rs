//! Which parts an artifact has, in which order they lie in the file, and what each is for.
//!
//! The file is an OCI image layout, so that a registry can keep every part under its digest:
//!
//! ```text
//! oci-layout                      which layout this is
//! index.json                      names the image manifest
//! blobs/sha256/<image manifest>   lists all parts; what a registry reads
//! blobs/sha256/<manifest>         what the snapshot consists of; what forkd reads
//! blobs/sha256/<signature>        over the manifest
//! blobs/sha256/<part> ...         device state, indexes, overlays, memory; each once
//! ```
//!
//! The first two files and the image manifest follow from the others: a reader makes them itself
//! and compares.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::archive::{self, END_BYTES, blob_name, entry_bytes};
use crate::{ArtifactError, ArtifactManifest, Chunk, Digest};

pub(crate) const LAYOUT_NAME: &str = "oci-layout";
pub(crate) const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
pub(crate) const INDEX_NAME: &str = "index.json";
/// Longer than any that is written.
pub(crate) const INDEX_BYTES_MAX: u64 = 4096;
/// For a manifest, and for an image manifest: room for about 80,000 parts, 300 GiB of memory.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 16 << 20;
pub(crate) const SIGNATURE_BYTES_MAX: u64 = 4096;

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const IMAGE_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const SNAPSHOT_TYPE: &str = "application/vnd.forkd.snapshot.v1+json";
const SIGNATURE_TYPE: &str = "application/vnd.forkd.snapshot.signature.v1+json";
const PART_TYPE: &str = "application/vnd.forkd.snapshot.part.v1+zstd";

/// What a part is for: the number of the layer or overlay, and that of its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    DeviceState(usize),
    Index { layer: usize, number: usize },
    Overlay { overlay: usize, number: usize },
    Memory { layer: usize, number: usize },
}

/// Parts in the order of the file, each once, with all that it is for.
#[derive(Debug)]
pub(crate) struct Order(Vec<(Chunk, Vec<Use>)>);

impl Order {
    /// The order that a manifest asks for.
    pub(crate) fn of(manifest: &ArtifactManifest) -> Result<Self, ArtifactError> {
        let mut order = Builder::default();
        order.add(&manifest.device_state.chunks, Use::DeviceState)?;
        for (layer, part) in manifest.layers.iter().enumerate() {
            order.add(&part.index.chunks, |number| Use::Index { layer, number })?;
        }
        for (overlay, part) in manifest.overlays.iter().enumerate() {
            order.add(&part.file.chunks, |number| Use::Overlay { overlay, number })?;
        }
        for (layer, part) in manifest.layers.iter().enumerate() {
            order.add(&part.chunks, |number| Use::Memory { layer, number })?;
        }
        Ok(Self(order.parts))
    }

    pub(crate) fn parts(&self) -> &[(Chunk, Vec<Use>)] {
        &self.0
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(chunk, _)| chunk.size).sum()
    }
}

#[derive(Default)]
struct Builder {
    parts: Vec<(Chunk, Vec<Use>)>,
    places: BTreeMap<Digest, usize>,
}

impl Builder {
    fn add(&mut self, chunks: &[Chunk], used: impl Fn(usize) -> Use) -> Result<(), ArtifactError> {
        for (number, chunk) in chunks.iter().enumerate() {
            let place = *self.places.entry(chunk.digest).or_insert(self.parts.len());
            match self.parts.get_mut(place) {
                Some((known, uses)) if known == chunk => uses.push(used(number)),
                Some((known, _)) => {
                    let problem = format!("part {} has two lengths", known.digest);
                    return Err(ArtifactError::Manifest(problem));
                }
                None => self.parts.push((*chunk, vec![used(number)])),
            }
        }
        Ok(())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    media_type: &'a str,
    digest: Digest,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<&'a str, &'a str>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Image<'a> {
    schema_version: u32,
    media_type: &'a str,
    artifact_type: &'a str,
    config: Descriptor<'a>,
    layers: Vec<Descriptor<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    media_type: &'a str,
    manifests: [Descriptor<'a>; 1],
}

/// The files before the parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) index: Vec<u8>,
    pub(crate) image: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

impl Head {
    /// Of an artifact called `tag`.
    pub(crate) fn new(
        tag: &str,
        manifest: Vec<u8>,
        signature: Vec<u8>,
        order: &Order,
    ) -> Result<Self, ArtifactError> {
        let failed = |error: serde_json::Error| ArtifactError::Manifest(error.to_string());
        let blob = |media_type, bytes: &[u8]| Descriptor {
            media_type,
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            annotations: None,
        };
        let part = |(chunk, _): &(Chunk, Vec<Use>)| Descriptor {
            media_type: PART_TYPE,
            digest: chunk.digest,
            size: chunk.size,
            annotations: None,
        };
        let mut layers = vec![blob(SIGNATURE_TYPE, &signature)];
        layers.extend(order.parts().iter().map(part));
        let image = Image {
            schema_version: 2,
            media_type: IMAGE_TYPE,
            artifact_type: SNAPSHOT_TYPE,
            config: blob(SNAPSHOT_TYPE, &manifest),
            layers,
        };
        let image = serde_json::to_vec(&image).map_err(failed)?;
        let annotations = Some(BTreeMap::from([("org.opencontainers.image.ref.name", tag)]));
        let index = Index {
            schema_version: 2,
            media_type: INDEX_TYPE,
            manifests: [Descriptor { annotations, ..blob(IMAGE_TYPE, &image) }],
        };
        let index = serde_json::to_vec(&index).map_err(failed)?;
        let longest = manifest.len().max(image.len()) as u64;
        if longest > MANIFEST_BYTES_MAX {
            let text = format!("{} parts need a manifest of {longest} bytes", order.parts().len());
            return Err(ArtifactError::TooLarge(text));
        }
        Ok(Self { index, image, manifest, signature })
    }

    /// Writes these files.
    pub(crate) fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        archive::write(to, LAYOUT_NAME, LAYOUT)?;
        archive::write(to, INDEX_NAME, &self.index)?;
        for content in [&self.image, &self.manifest, &self.signature] {
            archive::write(to, &blob_name(&Digest::of(content)), content)?;
        }
        Ok(())
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self, order: &Order) -> u64 {
        let head = [LAYOUT, &self.index, &self.image, &self.manifest, &self.signature];
        let head = head.iter().map(|content| entry_bytes(content.len() as u64));
        let parts = order.parts().iter().map(|(chunk, _)| entry_bytes(chunk.size));
        head.chain(parts).sum::<u64>() + END_BYTES
    }
}
