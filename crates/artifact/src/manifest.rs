//! What an artifact consists of. The text is JSON in one form only, so that it has one digest.
//!
//! Guarantees: a manifest that was read is within the limits, and everything in it that can be
//! compared without its parts fits together.

use std::collections::BTreeSet;

use forkd_store::MachineIdentity;
use forkd_types::{ByteCount, LayerId, MachineSize, OverlayId, limit};
use serde::{Deserialize, Serialize};

use crate::chunk::{CHUNK_BYTES, COMPRESSED_BYTES_MAX};
use crate::{ArtifactError, Digest};

/// Raised when a program that does not know a change would use an artifact wrongly.
const FORMAT: u32 = 1;
/// Bytes of an index of a layer.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one overlay.
const OVERLAY_BYTES_MAX: u64 = 1 << 40;
/// Bytes of the text of a network.
const NETWORK_BYTES_MAX: usize = 1 << 20;

/// What device state is bound to, and that an import compares with its host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The VMM and how it executes guests.
    pub vmm: MachineIdentity,
    /// QEMU's machine type and its options.
    pub machine_type: String,
    /// What the processor can, where guests see it.
    pub host_cpu: Option<String>,
    /// The machine has a network device.
    pub network_device: bool,
    /// SHA-256 of the certificate of a network gateway that programs in the guest trust.
    pub gateway_certificate: Option<String>,
}

/// The image that an artifact needs, which is not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageReference {
    /// Its name.
    pub name: String,
    /// Of its kernel, initramfs, root disk and command line.
    pub content_hash: String,
    /// Length of its root disk.
    pub disk_bytes: Option<ByteCount>,
}

/// What children cannot shed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Their VMM may not have more memory.
    pub memory_bytes: Option<ByteCount>,
    /// Their VMM has a network namespace of its own.
    pub own_network: bool,
}

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its name.
    pub digest: Digest,
    /// Its length, compressed.
    pub size: u64,
}

/// Bytes in pieces of 4 MiB, the last one shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// How many.
    pub bytes: u64,
    /// In order.
    pub chunks: Vec<Chunk>,
}

/// A memory layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPart {
    /// Its name where it was exported; the next layer's index names it.
    pub id: LayerId,
    /// Which pages it has.
    pub index: Stream,
    /// Its pages: a part for each 4 MiB of guest memory of which it has any.
    pub chunks: Vec<Chunk>,
}

/// A disk overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayPart {
    /// Its name where it was exported.
    pub id: OverlayId,
    /// The qcow2 file.
    pub file: Stream,
}

/// What a snapshot consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactManifest {
    /// Always 1.
    pub format: u32,
    /// The version of forkd that wrote it. Decides nothing.
    pub forkd_version: String,
    /// What the snapshot was called.
    pub tag: String,
    /// When it was taken, in seconds since 1970.
    pub created_at_unix: u64,
    /// What the snapshots below were called, the nearest first.
    pub ancestors: Vec<String>,
    /// What it runs on.
    pub machine: Machine,
    /// Guest RAM.
    pub memory_bytes: ByteCount,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// What it was started from.
    pub image: ImageReference,
    /// What children cannot shed.
    pub limits: Limits,
    /// What its source could reach: text of the engine's, without secrets.
    pub network: Option<String>,
    /// The devices.
    pub device_state: Stream,
    /// Memory, base first.
    pub layers: Vec<LayerPart>,
    /// Disk, lowest first.
    pub overlays: Vec<OverlayPart>,
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl ArtifactManifest {
    /// The version of the format.
    pub const FORMAT: u32 = FORMAT;

    /// The one text of it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ArtifactError> {
        serde_json::to_vec(self).map_err(|error| ArtifactError::Manifest(error.to_string()))
    }

    /// Reads what [`Self::encode`] has written, and nothing else.
    ///
    /// # Errors
    /// [`ArtifactError::Format`] for that of another version, [`ArtifactError::Manifest`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ArtifactError> {
        let refused = |error: serde_json::Error| ArtifactError::Manifest(error.to_string());
        let version: Version = serde_json::from_slice(bytes).map_err(refused)?;
        if version.format != FORMAT {
            return Err(ArtifactError::Format { found: version.format, known: FORMAT });
        }
        let read: Self = serde_json::from_slice(bytes).map_err(refused)?;
        read.check().map_err(ArtifactError::Manifest)?;
        if read.encode()? == bytes {
            return Ok(read);
        }
        Err(ArtifactError::Manifest("it is not written as it should be".to_owned()))
    }

    /// What is wrong with it, as far as its parts need not be known.
    pub(crate) fn check(&self) -> Result<(), String> {
        MachineSize::new(self.memory_bytes, self.vcpus).map_err(|error| error.to_string())?;
        if self.network.as_ref().is_some_and(|network| network.len() > NETWORK_BYTES_MAX) {
            return Err("its network is too long".to_owned());
        }
        in_range("memory layers", self.layers.len(), 1)?;
        let fewest = usize::from(self.image.disk_bytes.is_some());
        in_range("disk overlays", self.overlays.len(), fewest)?;
        if fewest == 0 && !self.overlays.is_empty() {
            return Err("it has disk overlays, and its image has no disk".to_owned());
        }
        let layers: BTreeSet<_> = self.layers.iter().map(|layer| &layer.id).collect();
        let overlays: BTreeSet<_> = self.overlays.iter().map(|overlay| &overlay.id).collect();
        if layers.len() != self.layers.len() || overlays.len() != self.overlays.len() {
            return Err("it names a layer or an overlay twice".to_owned());
        }
        self.device_state.check("the device state", limit::DEVICE_STATE_MAX.get())?;
        for layer in &self.layers {
            layer.index.check("an index", INDEX_BYTES_MAX)?;
            if layer.chunks.len() as u64 > self.memory_bytes.get().div_ceil(CHUNK_BYTES) {
                return Err(format!("layer {} has more parts than memory", layer.id));
            }
            check_chunks(&layer.chunks)?;
        }
        self.overlays.iter().try_for_each(|part| part.file.check("an overlay", OVERLAY_BYTES_MAX))
    }
}

fn in_range(what: &str, count: usize, fewest: usize) -> Result<(), String> {
    // Those of the deepest chain, and the one on top.
    let most = limit::CHAIN_DEPTH_MAX + 1;
    if (fewest..=most).contains(&count) {
        return Ok(());
    }
    Err(format!("it has {count} {what}, not {fewest} to {most}"))
}

fn check_chunks(chunks: &[Chunk]) -> Result<(), String> {
    let bad = chunks.iter().find(|chunk| !(1..=COMPRESSED_BYTES_MAX).contains(&chunk.size));
    match bad {
        Some(chunk) => Err(format!("part {} has {} bytes", chunk.digest, chunk.size)),
        None => Ok(()),
    }
}

impl Stream {
    fn check(&self, what: &str, most: u64) -> Result<(), String> {
        if !(1..=most).contains(&self.bytes) {
            return Err(format!("{what} has {} bytes, not 1 to {most}", self.bytes));
        }
        if self.chunks.len() as u64 != self.bytes.div_ceil(CHUNK_BYTES) {
            return Err(format!("{what} has not the number of parts that it needs"));
        }
        check_chunks(&self.chunks)
    }

    /// Where the part `number` lies.
    pub(crate) fn range(&self, number: usize) -> std::ops::Range<u64> {
        let start = number as u64 * CHUNK_BYTES;
        start..(start + CHUNK_BYTES).min(self.bytes)
    }
}
