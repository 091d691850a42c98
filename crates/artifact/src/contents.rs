//! What the parts of a snapshot hold, whatever they are called where they are.
//!
//! A layer has another name in each store, and an index that names the layer below it by its name
//! there. So none of these goes into the names here: equal names are equal pages at equal places,
//! wherever they were exported.
//!
//! Does not do: say what lies below. Two layers of one name may lie over different ones.

use forkd_store::{LayerIndex, LayerKind};

use crate::{ArtifactManifest, Chunk, Digest, Stream};

/// Bit of a run's count that tells pages of zeros from stored ones.
const ZERO_RUN: u64 = 1 << 63;

/// Names for what a snapshot's parts hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Of each memory layer, base first.
    pub layers: Vec<Digest>,
    /// Of each disk overlay, lowest first.
    pub overlays: Vec<Digest>,
    /// Of the device state.
    pub device_state: Digest,
}

impl Contents {
    /// Of an artifact with this manifest, whose layers have these indexes.
    pub(crate) fn of<'i>(
        manifest: &ArtifactManifest,
        indexes: impl Iterator<Item = &'i LayerIndex>,
    ) -> Self {
        let layers = indexes.zip(&manifest.layers);
        Self {
            layers: layers.map(|(index, part)| of_layer(index, &part.chunks)).collect(),
            overlays: manifest.overlays.iter().map(|part| of_stream(&part.file)).collect(),
            device_state: of_stream(&manifest.device_state),
        }
    }
}

/// A layer with this index, and with pages in these parts.
fn of_layer(index: &LayerIndex, parts: &[Chunk]) -> Digest {
    let mut text = vec![match index.kind {
        LayerKind::Base => 0,
        LayerKind::Delta => 1,
    }];
    let mut add = |number: u64| text.extend(number.to_le_bytes());
    add(index.memory.get());
    add((index.stored.len() + index.zero.len()) as u64);
    for (runs, flag) in [(&index.stored, 0), (&index.zero, ZERO_RUN)] {
        for run in runs {
            add(run.start.get());
            add(run.count.get() | flag);
        }
    }
    add_parts(&mut text, parts);
    Digest::of(&text)
}

/// A file in pieces.
fn of_stream(stream: &Stream) -> Digest {
    let mut text = stream.bytes.to_le_bytes().to_vec();
    add_parts(&mut text, &stream.chunks);
    Digest::of(&text)
}

fn add_parts(text: &mut Vec<u8>, parts: &[Chunk]) {
    parts.iter().for_each(|part| text.extend(part.digest.as_bytes()));
}
