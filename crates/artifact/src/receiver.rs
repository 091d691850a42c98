//! Parts on their way into a store.

use std::fs::File;

use forkd_store::{
    Chain, FileChecksum, LayerIndex, LayerKind, LayerWriter, OverlayWriter, Qcow2Header,
    StoreError, StoreFiles,
};
use forkd_types::{ByteCount, LayerId, OverlayId, PageRun, limit};

use crate::chunk::CHUNK_BYTES;
use crate::export::regions;
use crate::layout::Use;
use crate::{ArtifactError, ArtifactManifest, Contents, Digest};

/// What of an artifact is in the store already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlreadyHere {
    /// The lowest memory layers, base first, each over the one before. All of them only where the
    /// device state that goes by the last one's name is the artifact's too.
    pub layers: Vec<LayerId>,
    /// The lowest disk overlays.
    pub overlays: Vec<OverlayId>,
}

/// Parts on their way into a store. Dropped early, it leaves nothing.
pub(crate) struct Receiver<'a, 'm> {
    files: &'a StoreFiles,
    manifest: &'m ArtifactManifest,
    find: &'m mut dyn FnMut(&Contents) -> AlreadyHere,
    device_state: Vec<u8>,
    /// Bytes of each index, as far as they were read.
    indexes: Vec<Vec<u8>>,
    /// Parts that came for the device state or an index and are needed for memory or disk as well.
    twice: Vec<(Use, Use, Digest)>,
    /// Memory and disk, once all indexes are here.
    content: Option<Content>,
}

/// Memory and disk that come: those above what is here already.
struct Content {
    contents: Contents,
    here: AlreadyHere,
    layers: Vec<IncomingLayer>,
    overlays: Vec<OverlayWriter>,
}

/// Which pages a layer has.
struct Pages {
    index: LayerIndex,
    /// The runs of each part.
    regions: Vec<Vec<PageRun>>,
}

/// A layer that comes.
struct IncomingLayer {
    pages: Pages,
    writer: LayerWriter,
    file: File,
}

impl Content {
    fn needs(&self, used: Use) -> bool {
        match used {
            Use::DeviceState(_) | Use::Index { .. } => true,
            Use::Overlay { overlay, .. } => overlay >= self.here.overlays.len(),
            Use::Memory { layer, .. } => layer >= self.here.layers.len(),
        }
    }

    fn layer(&self, layer: usize) -> &IncomingLayer {
        &self.layers[layer - self.here.layers.len()]
    }

    fn write(&self, at: Use, start: u64, content: &[u8]) -> Result<(), ArtifactError> {
        match at {
            Use::DeviceState(_) | Use::Index { .. } => {}
            Use::Overlay { overlay, .. } => {
                self.overlays[overlay - self.here.overlays.len()].write(start, content)?;
            }
            Use::Memory { layer, number } => {
                let IncomingLayer { pages: Pages { regions, .. }, file, writer } =
                    self.layer(layer);
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
}

impl<'a, 'm> Receiver<'a, 'm> {
    pub(crate) fn new(
        files: &'a StoreFiles,
        manifest: &'m ArtifactManifest,
        find: &'m mut dyn FnMut(&Contents) -> AlreadyHere,
    ) -> Self {
        let indexes = vec![Vec::new(); manifest.layers.len()];
        let (device_state, twice) = (Vec::new(), Vec::new());
        Self { files, manifest, find, device_state, indexes, twice, content: None }
    }

    /// Those of a part's uses for which it must come. Parts for the device state and the indexes
    /// come first.
    pub(crate) fn needed(&mut self, uses: &[Use]) -> Result<Vec<Use>, ArtifactError> {
        if matches!(uses.first(), Some(Use::DeviceState(_) | Use::Index { .. })) {
            return Ok(uses.to_vec());
        }
        let content = self.begun()?;
        Ok(uses.iter().copied().filter(|used| content.needs(*used)).collect())
    }

    /// Bytes that a part must hold.
    pub(crate) fn length_of(&mut self, used: Use) -> Result<usize, ArtifactError> {
        let range = self.range_of(used)?;
        assert!(range.end - range.start <= CHUNK_BYTES, "{used:?}");
        Ok(ByteCount::new(range.end - range.start).as_usize())
    }

    /// Where a part lies in its file; for memory, which is spread, how long it is.
    fn range_of(&mut self, used: Use) -> Result<std::ops::Range<u64>, ArtifactError> {
        Ok(match used {
            Use::DeviceState(number) => self.manifest.device_state.range(number),
            Use::Index { layer, number } => self.manifest.layers[layer].index.range(number),
            Use::Overlay { overlay, number } => self.manifest.overlays[overlay].file.range(number),
            Use::Memory { layer, number } => {
                let runs = &self.begun()?.layer(layer).pages.regions[number];
                0..runs.iter().map(|run| run.bytes().get()).sum()
            }
        })
    }

    /// Puts the content of a part to its places.
    pub(crate) fn put(
        &mut self,
        uses: &[Use],
        part: Digest,
        content: &[u8],
    ) -> Result<(), ArtifactError> {
        let Some(first) = uses.first().copied() else { return Ok(()) };
        let is_early = matches!(first, Use::DeviceState(_) | Use::Index { .. });
        for used in uses.iter().copied() {
            match used {
                // What is not known yet whether it is needed is copied from there later.
                Use::Overlay { .. } | Use::Memory { .. } if is_early => {
                    self.twice.push((first, used, part));
                }
                _ => self.put_to(used, part, content)?,
            }
        }
        Ok(())
    }

    fn put_to(&mut self, used: Use, part: Digest, content: &[u8]) -> Result<(), ArtifactError> {
        let range = self.range_of(used)?;
        if range.end - range.start != content.len() as u64 {
            return Err(ArtifactError::Part { part, how: "has two lengths" });
        }
        match used {
            Use::DeviceState(_) => put_at(&mut self.device_state, range.start, content),
            Use::Index { layer, .. } => put_at(&mut self.indexes[layer], range.start, content),
            Use::Overlay { .. } | Use::Memory { .. } => {
                self.begun()?.write(used, range.start, content)?;
            }
        }
        Ok(())
    }

    /// What came for the device state or an index.
    fn held(&mut self, used: Use) -> Result<Vec<u8>, ArtifactError> {
        let range = self.range_of(used)?;
        let range = ByteCount::new(range.start).as_usize()..ByteCount::new(range.end).as_usize();
        Ok(match used {
            Use::DeviceState(_) => self.device_state[range].to_vec(),
            Use::Index { layer, .. } => self.indexes[layer][range].to_vec(),
            Use::Overlay { .. } | Use::Memory { .. } => Vec::new(),
        })
    }

    /// Memory and disk: all indexes are there.
    fn begun(&mut self) -> Result<&Content, ArtifactError> {
        if self.content.is_none() {
            self.content = Some(self.begin()?);
            for (from, to, part) in std::mem::take(&mut self.twice) {
                if self.content.as_ref().is_some_and(|content| content.needs(to)) {
                    let content = self.held(from)?;
                    self.put_to(to, part, &content)?;
                }
            }
            self.indexes.clear();
        }
        self.content.as_ref().ok_or_else(|| ArtifactError::Manifest("it has no content".to_owned()))
    }

    fn begin(&mut self) -> Result<Content, ArtifactError> {
        let indexes = self.checked_indexes()?;
        let contents = Contents::of(self.manifest, indexes.iter().map(|pages| &pages.index));
        let here = (self.find)(&contents);
        let mut layers = Vec::new();
        for pages in indexes.into_iter().skip(here.layers.len()) {
            let (memory, stored) = (pages.index.memory, pages.index.stored_bytes());
            let writer = LayerWriter::create(self.files, memory, stored)?;
            let file = writer.file().map_err(|source| write_failed(&writer, source))?;
            layers.push(IncomingLayer { pages, writer, file });
        }
        let overlays = self.manifest.overlays.iter().skip(here.overlays.len());
        let overlays = overlays
            .map(|part| OverlayWriter::create(self.files, ByteCount::new(part.file.bytes)))
            .collect::<Result<_, StoreError>>()?;
        Ok(Content { contents, here, layers, overlays })
    }

    /// The indexes, which fit together and to the parts.
    fn checked_indexes(&self) -> Result<Vec<Pages>, ArtifactError> {
        let mut checked = Vec::new();
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
            checked.push(Pages { index, regions });
            below = Some(&part.id);
        }
        Ok(checked)
    }

    /// All parts have come, `taken` bytes of them.
    pub(crate) fn finish(mut self, taken: u64) -> Result<Received<'a>, ArtifactError> {
        // Of a guest whose memory is all zero nothing has come yet.
        self.begun()?;
        let Some(Content { contents, here, layers, overlays }) = self.content else {
            return Err(ArtifactError::Manifest("it has no content".to_owned()));
        };
        let disk = self.manifest.image.disk_bytes;
        let mut received = Received::over(self.files, here, contents, taken);
        for overlay in overlays {
            received.overlays.push(seal_overlay(overlay, disk)?);
        }
        let open = |id: &LayerId| self.files.open_layer(id);
        let mut chain = received.layers.iter().map(open).collect::<Result<Vec<_>, StoreError>>()?;
        for IncomingLayer { pages: Pages { index, .. }, writer, .. } in layers {
            let layer = match received.layers.last() {
                None => writer.seal_base()?,
                Some(below) => writer.seal_delta(below, index.stored, index.zero)?,
            };
            received.layers.push(layer.index.id.clone());
            chain.push(layer);
        }
        Chain::new(self.files, chain)?;
        if let Some(top) = received.layers.last() {
            if received.layers.len() > received.shared_layers {
                self.files.write_device_state(top, &self.device_state)?;
            }
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

/// The parts of a snapshot, in a store. Those that came are removed when this is dropped and not
/// kept.
#[derive(Debug)]
pub struct Received<'a> {
    files: &'a StoreFiles,
    /// Memory, base first.
    pub layers: Vec<LayerId>,
    /// Disk, lowest first.
    pub overlays: Vec<OverlayId>,
    /// The devices, which go by the last layer's name.
    pub device_state: Option<FileChecksum>,
    /// What all of it holds.
    pub contents: Contents,
    /// Bytes of parts that had to come.
    pub taken_bytes: u64,
    /// The lowest so many layers and overlays were here before.
    shared_layers: usize,
    shared_overlays: usize,
    kept: bool,
}

impl<'a> Received<'a> {
    fn over(
        files: &'a StoreFiles,
        here: AlreadyHere,
        contents: Contents,
        taken_bytes: u64,
    ) -> Self {
        let AlreadyHere { layers, overlays } = here;
        let (shared_layers, shared_overlays) = (layers.len(), overlays.len());
        let (device_state, kept) = (None, false);
        Self {
            files,
            layers,
            overlays,
            device_state,
            contents,
            taken_bytes,
            shared_layers,
            shared_overlays,
            kept,
        }
    }

    /// A snapshot lists them now.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.layers[self.shared_layers..].iter().for_each(|id| self.files.remove_layer(id));
            let overlays = &self.overlays[self.shared_overlays..];
            overlays.iter().for_each(|id| self.files.remove_overlay(id));
        }
    }
}

const _: () = assert!(limit::DEVICE_STATE_MAX.get() <= 64 << 20, "it is held in memory");
