//! From a carrier to a store, in three steps, between which the caller decides:
//!
//! ```text
//! SignedArtifact   the documents were read, the signature is right: is the signer trusted?
//! Unpacked         the manifest was understood: does it fit this host, is there room?
//! Received         all parts are in the store: make a snapshot of them, or drop them
//! ```
//!
//! Layers and overlays get names of their own, so nothing that another snapshot lists is ever
//! written to, or shared because somebody claims to have made the same.

use std::fs::File;
use std::io::Read;

use forkd_store::{
    Chain, FileChecksum, LayerIndex, LayerKind, LayerWriter, OverlayWriter, Qcow2Header,
    StoreError, StoreFiles,
};
use forkd_types::{ByteCount, LayerId, OverlayId, PageRun, limit};

use crate::chunk::{CHUNK_BYTES, Decompressor};
use crate::export::regions;
use crate::file::FileReader;
use crate::layout::{Order, Use};
use crate::{
    ArtifactError, ArtifactManifest, Chunk, Digest, Documents, Incoming, PublicKey, Signature,
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

    /// Reads all parts into a store.
    ///
    /// # Errors
    /// See [`ArtifactError`]; also what `progress` ends with, which is told the bytes of parts that
    /// were read, and of how many. No file is left then.
    pub fn receive<'a>(
        mut self,
        files: &'a StoreFiles,
        progress: &mut dyn FnMut(u64, u64) -> Result<(), ArtifactError>,
    ) -> Result<Received<'a>, ArtifactError> {
        let mut receiver = Receiver::new(files, &self.manifest)?;
        let mut decompressor = Decompressor::new()?;
        let (mut done, all) = (0, self.order.bytes());
        for (chunk, uses) in self.order.parts() {
            progress(done, all)?;
            let part = checked(self.carrier.part(chunk)?, chunk)?;
            let Some(first) = uses.first() else { continue };
            let length = receiver.length_of(*first)?;
            let content = decompressor.decompress(chunk.digest, &part, length)?;
            for used in uses {
                receiver.put(*used, chunk.digest, &content)?;
            }
            done += chunk.size;
        }
        progress(done, all)?;
        self.carrier.end()?;
        receiver.finish()
    }
}

/// A part as the manifest names it.
fn checked(part: Vec<u8>, chunk: &Chunk) -> Result<Vec<u8>, ArtifactError> {
    if part.len() as u64 == chunk.size && Digest::of(&part) == chunk.digest {
        return Ok(part);
    }
    Err(ArtifactError::Digest(chunk.digest))
}

/// Parts on their way into a store. Dropped early, it leaves nothing.
struct Receiver<'a, 'm> {
    files: &'a StoreFiles,
    manifest: &'m ArtifactManifest,
    device_state: Vec<u8>,
    /// Bytes of each index, as far as they were read.
    indexes: Vec<Vec<u8>>,
    layers: Vec<IncomingLayer>,
    overlays: Vec<OverlayWriter>,
}

/// A layer whose index is known.
struct IncomingLayer {
    index: LayerIndex,
    regions: Vec<Vec<PageRun>>,
    writer: LayerWriter,
    file: File,
}

impl<'a, 'm> Receiver<'a, 'm> {
    fn new(files: &'a StoreFiles, manifest: &'m ArtifactManifest) -> Result<Self, ArtifactError> {
        let create = |part: &crate::OverlayPart| {
            OverlayWriter::create(files, ByteCount::new(part.file.bytes))
        };
        let overlays = manifest.overlays.iter().map(create).collect::<Result<_, StoreError>>()?;
        let indexes = vec![Vec::new(); manifest.layers.len()];
        let (device_state, layers) = (Vec::new(), Vec::new());
        Ok(Self { files, manifest, device_state, indexes, layers, overlays })
    }

    /// Bytes that a part must hold.
    fn length_of(&mut self, used: Use) -> Result<usize, ArtifactError> {
        let range = match used {
            Use::DeviceState(number) => self.manifest.device_state.range(number),
            Use::Index { layer, number } => self.manifest.layers[layer].index.range(number),
            Use::Overlay { overlay, number } => self.manifest.overlays[overlay].file.range(number),
            Use::Memory { layer, number } => {
                self.begin_memory()?;
                let runs = &self.layers[layer].regions[number];
                0..runs.iter().map(|run| run.bytes().get()).sum()
            }
        };
        assert!(range.end - range.start <= CHUNK_BYTES, "{used:?}");
        Ok(ByteCount::new(range.end - range.start).as_usize())
    }

    /// Puts the content of a part to one of its places.
    fn put(&mut self, used: Use, part: Digest, content: &[u8]) -> Result<(), ArtifactError> {
        if self.length_of(used)? != content.len() {
            return Err(ArtifactError::Part { part, how: "has two lengths" });
        }
        match used {
            Use::DeviceState(number) => {
                let at = self.manifest.device_state.range(number).start;
                put_at(&mut self.device_state, at, content);
            }
            Use::Index { layer, number } => {
                let at = self.manifest.layers[layer].index.range(number).start;
                put_at(&mut self.indexes[layer], at, content);
            }
            Use::Overlay { overlay, number } => {
                let at = self.manifest.overlays[overlay].file.range(number).start;
                self.overlays[overlay].write(at, content)?;
            }
            Use::Memory { layer, number } => {
                let IncomingLayer { regions, file, writer, .. } = &self.layers[layer];
                let mut at = 0;
                for run in &regions[number] {
                    let length = run.bytes().as_usize();
                    let pages = &content[at..at + length];
                    LayerWriter::write_pages(file, run.start, pages)
                        .map_err(|source| write_failed(writer, source))?;
                    at += length;
                }
            }
        }
        Ok(())
    }

    /// All indexes are there: the layers begin.
    fn begin_memory(&mut self) -> Result<(), ArtifactError> {
        if !self.layers.is_empty() {
            return Ok(());
        }
        let mut below: Option<&LayerId> = None;
        for (part, bytes) in self.manifest.layers.iter().zip(&self.indexes) {
            let index = LayerIndex::decode(&part.id, bytes)?;
            let refused = |how: &str| {
                ArtifactError::Manifest(format!("the index of layer {} {how}", part.id))
            };
            if index.memory != self.manifest.memory_bytes {
                return Err(refused("is that of a guest of another memory size"));
            }
            if index.below.as_ref() != below {
                return Err(refused("does not name the layer below"));
            }
            let is_base = below.is_none();
            if is_base != (index.kind == LayerKind::Base) || (is_base && !index.zero.is_empty()) {
                return Err(refused("is of the wrong kind"));
            }
            let regions = regions(&index.stored);
            if regions.len() != part.chunks.len() {
                return Err(refused("needs another number of parts"));
            }
            let writer = LayerWriter::create(self.files, index.memory, index.stored_bytes())?;
            let file = writer.file().map_err(|source| write_failed(&writer, source))?;
            self.layers.push(IncomingLayer { index, regions, writer, file });
            below = Some(&part.id);
        }
        self.indexes.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Received<'a>, ArtifactError> {
        // Of a guest whose memory is all zero nothing has come yet.
        self.begin_memory()?;
        let disk = self.manifest.image.disk_bytes;
        let mut received = Received::nothing(self.files);
        for overlay in self.overlays {
            received.overlays.push(seal_overlay(overlay, disk)?);
        }
        let mut sealed = Vec::new();
        for IncomingLayer { index, writer, .. } in self.layers {
            let layer = match received.layers.last() {
                None => writer.seal_base()?,
                Some(below) => writer.seal_delta(below, index.stored, index.zero)?,
            };
            received.layers.push(layer.index.id.clone());
            sealed.push(layer);
        }
        Chain::new(self.files, sealed)?;
        if let Some(top) = received.layers.last() {
            self.files.write_device_state(top, &self.device_state)?;
            received.device_state = Some(self.files.checksum_device_state(top)?);
        }
        Ok(received)
    }
}

fn write_failed(writer: &LayerWriter, source: std::io::Error) -> StoreError {
    StoreError::File { what: "write layer", path: writer.path(), source }
}

/// A part that is needed twice comes once, so pieces need not come in order.
fn put_at(bytes: &mut Vec<u8>, at: u64, content: &[u8]) {
    let at = ByteCount::new(at).as_usize();
    let end = at + content.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(content);
}

/// The header is the part of an overlay that could lead its reader to another file.
fn seal_overlay(
    overlay: OverlayWriter,
    disk: Option<ByteCount>,
) -> Result<OverlayId, ArtifactError> {
    let refused = |how: String| ArtifactError::Manifest(format!("a disk overlay: {how}"));
    let mut head = overlay.head()?;
    Qcow2Header::decode(&head).map_err(|error| refused(error.to_string()))?;
    // Where the image was when the snapshot was taken means nothing here.
    Qcow2Header::forget_backing(&mut head);
    let header = Qcow2Header::decode(&head).map_err(|error| refused(error.to_string()))?;
    if Some(header.disk) != disk {
        return Err(refused(format!("it is for a disk of {}", header.disk)));
    }
    overlay.write(0, &head)?;
    Ok(overlay.seal()?)
}

/// The parts of a snapshot, in a store. They are removed when this is dropped and not kept.
#[derive(Debug)]
pub struct Received<'a> {
    files: &'a StoreFiles,
    /// Memory, base first.
    pub layers: Vec<LayerId>,
    /// Disk, lowest first.
    pub overlays: Vec<OverlayId>,
    /// The devices, which go by the last layer's name.
    pub device_state: Option<FileChecksum>,
    kept: bool,
}

impl<'a> Received<'a> {
    fn nothing(files: &'a StoreFiles) -> Self {
        let (layers, overlays) = (Vec::new(), Vec::new());
        Self { files, layers, overlays, device_state: None, kept: false }
    }

    /// A snapshot lists them now.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.layers.iter().for_each(|id| self.files.remove_layer(id));
            self.overlays.iter().for_each(|id| self.files.remove_overlay(id));
        }
    }
}

const _: () = assert!(limit::DEVICE_STATE_MAX.get() <= 64 << 20, "it is held in memory");
