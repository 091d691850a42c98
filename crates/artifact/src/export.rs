//! From a store to a carrier.
//!
//! All parts are compressed twice: once to learn their digests, which the manifest at the beginning
//! names, and once to send those that the other side wants. So an export needs no space on disk,
//! and leaves nothing here wherever it ends.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;

use forkd_store::{Layer, LayerIndex, LayerKind, Qcow2Header};
use forkd_types::{OverlayId, PAGE_BYTES, PageRun};

use crate::chunk::{CHUNK_BYTES, Compressor};
use crate::file::{FileWriter, file_bytes};
use crate::layout::{Order, Use};
use crate::{
    ArtifactError, ArtifactManifest, Chunk, Contents, Digest, Documents, LayerPart, Outgoing,
    OverlayPart, SigningKey, Stream,
};

const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);
/// Pages looked at at once for those that are zero.
const LOOKED_AT: u64 = 256;

/// The parts of a snapshot, open.
#[derive(Debug)]
pub struct Parts {
    /// The devices.
    pub device_state: Vec<u8>,
    /// Memory, base first.
    pub layers: Vec<Layer>,
    /// Disk, lowest first.
    pub overlays: Vec<(OverlayId, File)>,
}

/// A snapshot whose parts have been named, to be written.
#[derive(Debug)]
pub struct Export {
    sources: Sources,
    order: Order,
    documents: Documents,
    contents: Contents,
}

/// How far an export is, in bytes of parts; an error stops it.
type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> Result<(), ArtifactError>;

impl Export {
    /// Names all parts of a snapshot and signs the names. `manifest` says everything else.
    ///
    /// # Errors
    /// See [`ArtifactError`]; also what `progress` ends with, which is told the bytes of guest and
    /// disk that are done, and of how many.
    pub fn prepare(
        manifest: ArtifactManifest,
        parts: Parts,
        key: &SigningKey,
        progress: Progress<'_>,
    ) -> Result<Self, ArtifactError> {
        let sources = Sources::of(parts)?;
        let mut namer = Namer::new(sources.bytes(), progress)?;
        let mut named = |sources: &Sources, used: &dyn Fn(usize) -> Use, count: usize| {
            (0..count).map(|number| namer.name(sources, used(number))).collect()
        };
        let stream = |bytes: u64, chunks: Result<_, ArtifactError>| -> Result<_, ArtifactError> {
            Ok(Stream { bytes, chunks: chunks? })
        };
        let pieces = |bytes: u64| usize::try_from(bytes.div_ceil(CHUNK_BYTES)).unwrap_or_default();
        let bytes = sources.device_state.len() as u64;
        let device_state = stream(bytes, named(&sources, &Use::DeviceState, pieces(bytes)))?;
        let mut layers = Vec::new();
        for (layer, source) in sources.layers.iter().enumerate() {
            let bytes = source.encoded.len() as u64;
            let used = |number| Use::Index { layer, number };
            let index = stream(bytes, named(&sources, &used, pieces(bytes)))?;
            let used = |number| Use::Memory { layer, number };
            let chunks: Result<_, ArtifactError> = named(&sources, &used, source.regions.len());
            layers.push(LayerPart { id: source.index.id.clone(), index, chunks: chunks? });
        }
        let mut overlays = Vec::new();
        for (overlay, source) in sources.overlays.iter().enumerate() {
            let used = |number| Use::Overlay { overlay, number };
            let file = stream(source.bytes, named(&sources, &used, pieces(source.bytes)))?;
            overlays.push(OverlayPart { id: source.id.clone(), file });
        }
        let manifest = ArtifactManifest { device_state, layers, overlays, ..manifest };
        manifest.check().map_err(ArtifactError::TooLarge)?;
        let order = Order::of(&manifest)?;
        let text = manifest.encode()?;
        let signature = key.sign(&text).encode();
        let documents = Documents::new(&manifest.tag, text, signature, &order)?;
        let contents = Contents::of(&manifest, sources.layers.iter().map(|layer| &layer.index));
        Ok(Self { sources, order, documents, contents })
    }

    /// What the parts hold.
    #[must_use]
    pub const fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Length of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        file_bytes(&self.documents, &self.order)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn write(self, to: &mut dyn Write, progress: Progress<'_>) -> Result<(), ArtifactError> {
        self.send(&mut FileWriter(to), progress)
    }

    /// Gives everything to a carrier.
    ///
    /// # Errors
    /// See [`ArtifactError`]; also what `progress` ends with, which is told the bytes of parts that
    /// the other side has, and of how many.
    pub fn send(self, to: &mut dyn Outgoing, progress: Progress<'_>) -> Result<(), ArtifactError> {
        to.begin(&self.documents)?;
        let mut compressor = Compressor::new().map_err(ArtifactError::writing)?;
        let (mut done, all) = (0, self.order.bytes());
        for (chunk, uses) in self.order.parts() {
            progress(done, all)?;
            done += chunk.size;
            let Some(first) = uses.first() else { continue };
            if !to.wants(chunk)? {
                continue;
            }
            let content = self.sources.content(*first)?;
            let part = compressor.compress(&content).map_err(ArtifactError::writing)?;
            if Digest::of(&part) != chunk.digest {
                return Err(ArtifactError::Changed);
            }
            to.part(chunk, part)?;
        }
        progress(done, all)?;
        to.finish(&self.documents)
    }
}

#[cfg(test)]
impl Export {
    pub(crate) fn manifest(&self) -> ArtifactManifest {
        ArtifactManifest::decode(&self.documents.manifest).unwrap()
    }

    pub(crate) fn digests(&self) -> Vec<Digest> {
        self.order.parts().iter().map(|(chunk, _)| chunk.digest).collect()
    }

    pub(crate) fn all_parts(&self) -> Vec<Vec<u8>> {
        let mut compressor = Compressor::new().unwrap();
        let content = |(_, uses): &(Chunk, Vec<Use>)| self.sources.content(uses[0]).unwrap();
        let parts = self.order.parts().iter().map(content);
        parts.map(|content| compressor.compress(&content).unwrap()).collect()
    }
}

/// Gives parts their names.
struct Namer<'a> {
    compressor: Compressor,
    progress: Progress<'a>,
    done: u64,
    all: u64,
}

impl<'a> Namer<'a> {
    fn new(all: u64, progress: Progress<'a>) -> Result<Self, ArtifactError> {
        let compressor = Compressor::new().map_err(ArtifactError::writing)?;
        Ok(Self { compressor, progress, done: 0, all })
    }

    fn name(&mut self, sources: &Sources, used: Use) -> Result<Chunk, ArtifactError> {
        (self.progress)(self.done.min(self.all), self.all)?;
        let content = sources.content(used)?;
        self.done += content.len() as u64;
        let part = self.compressor.compress(&content).map_err(ArtifactError::writing)?;
        Ok(Chunk { digest: Digest::of(&part), size: part.len() as u64 })
    }
}

/// Where the content of parts comes from.
#[derive(Debug)]
struct Sources {
    device_state: Vec<u8>,
    layers: Vec<LayerSource>,
    overlays: Vec<OverlaySource>,
}

#[derive(Debug)]
struct LayerSource {
    index: LayerIndex,
    encoded: Vec<u8>,
    pages: File,
    /// The runs of each part.
    regions: Vec<Vec<PageRun>>,
}

#[derive(Debug)]
struct OverlaySource {
    id: OverlayId,
    file: File,
    bytes: u64,
}

impl Sources {
    fn of(parts: Parts) -> Result<Self, ArtifactError> {
        let layers = parts.layers.into_iter().map(LayerSource::of).collect::<Result<_, _>>()?;
        let overlay = |(id, file): (OverlayId, File)| {
            let bytes = file.metadata().map_err(ArtifactError::reading)?.len();
            Ok(OverlaySource { id, file, bytes })
        };
        let overlays = parts.overlays.into_iter().map(overlay);
        let overlays = overlays.collect::<Result<_, ArtifactError>>()?;
        Ok(Self { device_state: parts.device_state, layers, overlays })
    }

    fn bytes(&self) -> u64 {
        let runs = self.layers.iter().flat_map(|layer| layer.regions.iter().flatten());
        let memory: u64 = runs.map(|run| run.bytes().get()).sum();
        let indexes: u64 = self.layers.iter().map(|layer| layer.encoded.len() as u64).sum();
        let disks: u64 = self.overlays.iter().map(|overlay| overlay.bytes).sum();
        self.device_state.len() as u64 + indexes + memory + disks
    }

    fn content(&self, used: Use) -> Result<Vec<u8>, ArtifactError> {
        match used {
            Use::DeviceState(number) => Ok(piece(&self.device_state, number)),
            Use::Index { layer, number } => Ok(piece(&self.layers[layer].encoded, number)),
            Use::Memory { layer, number } => {
                let source = &self.layers[layer];
                read_runs(&source.pages, &source.regions[number])
            }
            Use::Overlay { overlay, number } => {
                let source = &self.overlays[overlay];
                let stream = Stream { bytes: source.bytes, chunks: Vec::new() };
                let range = stream.range(number);
                let length = usize::try_from(range.end - range.start).unwrap_or_default();
                let mut content = vec![0; length];
                source.file.read_exact_at(&mut content, range.start).map_err(
                    |error| match error.kind() {
                        std::io::ErrorKind::UnexpectedEof => ArtifactError::Changed,
                        _ => ArtifactError::reading(error),
                    },
                )?;
                if number == 0 {
                    // Where the image is on this host is nobody's business, and another elsewhere.
                    Qcow2Header::forget_backing(&mut content);
                }
                Ok(content)
            }
        }
    }
}

fn piece(bytes: &[u8], number: usize) -> Vec<u8> {
    let size = usize::try_from(CHUNK_BYTES).unwrap_or(usize::MAX);
    bytes.chunks(size).nth(number).unwrap_or_default().to_vec()
}

fn read_runs(pages: &File, runs: &[PageRun]) -> Result<Vec<u8>, ArtifactError> {
    let mut content = Vec::new();
    for run in runs {
        let at = content.len();
        content.resize(at + run.bytes().as_usize(), 0);
        let read = pages.read_exact_at(&mut content[at..], run.start.byte_offset());
        read.map_err(ArtifactError::reading)?;
    }
    Ok(content)
}

impl LayerSource {
    fn of(layer: Layer) -> Result<Self, ArtifactError> {
        let stored = match layer.index.kind {
            // What a base does not list is zero. The guest has pages that it only cleared.
            LayerKind::Base => not_zero(&layer.pages, &layer.index.stored)?,
            LayerKind::Delta => layer.index.stored.clone(),
        };
        let regions = regions(&stored);
        let index = LayerIndex { stored, pages_crc32: None, ..layer.index };
        Ok(Self { encoded: index.encode(), index, pages: layer.pages, regions })
    }
}

/// The runs of each 4 MiB of guest memory of which there are any.
pub(crate) fn regions(stored: &[PageRun]) -> Vec<Vec<PageRun>> {
    let pages = CHUNK_BYTES / PAGE_BYTES;
    let mut regions: Vec<Vec<PageRun>> = Vec::new();
    let mut last = None;
    for run in stored {
        let (mut at, end) = (run.start.get(), run.end().get());
        while at < end {
            let region = at / pages;
            let stop = end.min((region + 1) * pages);
            if last != Some(region) {
                regions.push(Vec::new());
                last = Some(region);
            }
            if let Some(runs) = regions.last_mut() {
                runs.push(PageRun::new(at, stop - at));
            }
            at = stop;
        }
    }
    regions
}

/// Those of `runs` that are not zero.
fn not_zero(pages: &File, runs: &[PageRun]) -> Result<Vec<PageRun>, ArtifactError> {
    let mut kept: Vec<PageRun> = Vec::new();
    for run in runs {
        let mut at = run.start.get();
        while at < run.end().get() {
            let count = LOOKED_AT.min(run.end().get() - at);
            let content = read_runs(pages, &[PageRun::new(at, count)])?;
            for (page, bytes) in (at..).zip(content.chunks_exact(PAGE)) {
                if bytes.iter().all(|byte| *byte == 0) {
                    continue;
                }
                match kept.last_mut() {
                    Some(last) if last.end().get() == page => {
                        *last = PageRun::new(last.start.get(), page + 1 - last.start.get());
                    }
                    _ => kept.push(PageRun::new(page, 1)),
                }
            }
            at += count;
        }
    }
    Ok(kept)
}
