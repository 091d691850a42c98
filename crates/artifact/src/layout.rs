//! Which parts an artifact has, in which order, what each is for, and the documents that name them.
//!
//! An artifact is an OCI image, so that a registry can keep every part under its digest:
//!
//! ```text
//! index            names the image manifest, in a file only
//! image manifest   lists all parts; what a registry reads
//! manifest         what the snapshot consists of; what forkd reads
//! signature        over the manifest
//! part ...         device state, indexes, overlays, memory; each once
//! ```
//!
//! The index and the image manifest follow from the others: a reader makes them itself and
//! compares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ArtifactError, ArtifactManifest, Chunk, Digest, Documents};

/// Longer than any that is written.
pub(crate) const INDEX_BYTES_MAX: u64 = 4096;
/// For a manifest, and for an image manifest: room for about 80,000 parts, 300 GiB of memory.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 16 << 20;
pub(crate) const SIGNATURE_BYTES_MAX: u64 = 4096;

const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const IMAGE_TYPE: &str = Documents::IMAGE_TYPE;
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

impl Documents {
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
        Ok(Self { index: Some(index), image, manifest, signature })
    }

    /// Whether `found` are these, as far as its carrier has them.
    pub(crate) fn are(&self, found: &Self) -> bool {
        let same_index = found.index.is_none() || found.index == self.index;
        same_index && found.image == self.image
    }
}

/// The index that a file needs.
pub(crate) fn required_index(documents: &Documents) -> Result<&[u8], ArtifactError> {
    let missing = || ArtifactError::Manifest("there is no index".to_owned());
    documents.index.as_deref().ok_or_else(missing)
}

/// The documents that an image manifest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// What the snapshot consists of.
    pub manifest: Chunk,
    /// Who says so.
    pub signature: Chunk,
    /// Bytes of all that the image manifest names.
    pub bytes: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FoundImage {
    artifact_type: Option<String>,
    config: Option<Chunk>,
    #[serde(default)]
    layers: Vec<Chunk>,
}

impl Named {
    /// Looks into an image manifest from a registry, for no more than where the others are: it is
    /// compared as a whole once these are there.
    ///
    /// # Errors
    /// [`ArtifactError::Manifest`] when it is not that of a snapshot.
    pub fn of(image: &[u8]) -> Result<Self, ArtifactError> {
        let refused = |problem: &str| ArtifactError::Manifest(problem.to_owned());
        let no_snapshot = "it is that of no snapshot; of an image make a template, with \
                           `forkd template build --from`";
        let found: FoundImage = serde_json::from_slice(image).map_err(|_| refused(no_snapshot))?;
        if found.artifact_type.as_deref() != Some(SNAPSHOT_TYPE) {
            return Err(refused(no_snapshot));
        }
        let (manifest, signature) = found
            .config
            .zip(found.layers.first().copied())
            .ok_or_else(|| refused("it names no signed manifest"))?;
        let bytes =
            found.layers.iter().fold(manifest.size, |all, part| all.saturating_add(part.size));
        let fits = (1..=MANIFEST_BYTES_MAX).contains(&manifest.size)
            && (1..=SIGNATURE_BYTES_MAX).contains(&signature.size);
        if fits {
            Ok(Self { manifest, signature, bytes })
        } else {
            Err(refused("it names too much"))
        }
    }
}
