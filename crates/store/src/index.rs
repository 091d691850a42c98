//! Which pages a layer has: a small file beside it.
//!
//! ```text
//! magic "FKDL" | version u16 | kind u8 | flags u8 | layer id, 24 bytes |
//! id of the layer below, 24 bytes, zeros in a base | RAM pages u64 | runs u64 |
//! crc32 of the pages u32 | crc32 of all before and of the runs u32 |
//! runs: start u64, count u64 with bit 63 = pages of zeros
//! ```
//!
//! Little-endian. The id repeats the file's name and is compared when it is opened. The id of the
//! layer below is compared when a chain is put together: a delta over any other layer would give
//! memory that no guest ever had.

use forkd_types::{ByteCount, LayerId, PAGE_BYTES, PageCount, PageRun, limit};

use crate::StoreError;

const MAGIC: [u8; 4] = *b"FKDL";
const VERSION: u16 = 2;
const HEADER_BYTES: usize = 80;
const RUN_BYTES: usize = 16;
const ID_BYTES: usize = 24;
const ZERO_RUN: u64 = 1 << 63;
const HAS_PAGE_CHECKSUM: u8 = 1;
const PAGES_PER_MIB: u64 = (1 << 20) / PAGE_BYTES;

// Tripwires: a change of the format needs a new VERSION and a way to read, or refuse by name, the
// old one.
const _: () = assert!(4 + 2 + 1 + 1 + 2 * ID_BYTES + 8 + 8 + 4 + 4 == HEADER_BYTES);
const _: () = assert!(VERSION == 2 && RUN_BYTES == 16);

/// What a layer is complete with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// All of guest RAM: pages that it does not list are zero.
    Base,
    /// Pages that differ from the layer below.
    Delta,
}

/// The content of a layer, without its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerIndex {
    /// The layer.
    pub id: LayerId,
    /// What it is complete with.
    pub kind: LayerKind,
    /// The layer that a delta was made over; none for a base.
    pub below: Option<LayerId>,
    /// Size of guest RAM.
    pub memory: ByteCount,
    /// Pages in the file, ascending.
    pub stored: Vec<PageRun>,
    /// Pages of zeros, which are holes in the file, ascending. Empty in a base layer.
    pub zero: Vec<PageRun>,
    /// Checksum of the stored pages in order; known when the durable copy is written.
    pub pages_crc32: Option<u32>,
}

impl LayerIndex {
    /// Bytes of the stored pages.
    #[must_use]
    pub fn stored_bytes(&self) -> ByteCount {
        self.stored.iter().map(|run| run.bytes()).sum()
    }

    /// The index as a file's content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let runs = self.stored.len() + self.zero.len();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + runs * RUN_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(match self.kind {
            LayerKind::Base => 0,
            LayerKind::Delta => 1,
        });
        bytes.push(if self.pages_crc32.is_some() { HAS_PAGE_CHECKSUM } else { 0 });
        bytes.extend(id_field(Some(&self.id)));
        bytes.extend(id_field(self.below.as_ref()));
        bytes.extend((self.memory.get() / PAGE_BYTES).to_le_bytes());
        bytes.extend((runs as u64).to_le_bytes());
        bytes.extend(self.pages_crc32.unwrap_or(0).to_le_bytes());
        let mut body = Vec::with_capacity(runs * RUN_BYTES);
        for (list, flag) in [(&self.stored, 0), (&self.zero, ZERO_RUN)] {
            for run in list {
                body.extend(run.start.get().to_le_bytes());
                body.extend((run.count.get() | flag).to_le_bytes());
            }
        }
        let checksum = checksum(&bytes, &body);
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// Reads a file's content, which must be the index of layer `id`.
    ///
    /// # Errors
    /// [`StoreError::LayerDamaged`] for anything that [`Self::encode`] cannot have written.
    pub fn decode(id: &LayerId, bytes: &[u8]) -> Result<Self, StoreError> {
        parse(id, bytes)
            .map_err(|how| StoreError::LayerDamaged { id: id.clone(), how: how.to_owned() })
    }
}

fn id_field(id: Option<&LayerId>) -> [u8; ID_BYTES] {
    let mut field = [0; ID_BYTES];
    if let Some(id) = id {
        field[..id.as_str().len()].copy_from_slice(id.as_str().as_bytes());
    }
    field
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(body);
    hasher.finalize()
}

fn parse_id(field: &[u8]) -> Result<LayerId, &'static str> {
    let name = field.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    name.ok_or("its index names the layer below by no valid id")
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], &'static str> {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).ok_or("its index is cut short")
}

fn parse(id: &LayerId, bytes: &[u8]) -> Result<LayerIndex, &'static str> {
    if word::<4>(bytes, 0)? != MAGIC {
        return Err("its index is not a layer index");
    }
    if u16::from_le_bytes(word(bytes, 4)?) != VERSION {
        return Err("its index has a version that this program does not know");
    }
    let stored_checksum = u32::from_le_bytes(word(bytes, HEADER_BYTES - 4)?);
    let (header, body) = (&bytes[..HEADER_BYTES - 4], &bytes[HEADER_BYTES..]);
    if checksum(header, body) != stored_checksum {
        return Err("its index does not match its checksum");
    }
    let name = word::<ID_BYTES>(bytes, 8)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    if name != id.as_str().as_bytes() {
        return Err("its index is that of another layer");
    }
    let kind = match bytes[6] {
        0 => LayerKind::Base,
        1 => LayerKind::Delta,
        _ => return Err("its index names no known kind of layer"),
    };
    let below = word::<ID_BYTES>(bytes, 8 + ID_BYTES)?;
    let below = match (kind, below == [0; ID_BYTES]) {
        (LayerKind::Base, true) => None,
        (LayerKind::Delta, false) => Some(parse_id(&below)?),
        _ => return Err("its index does not name the layer below as its kind demands"),
    };
    let pages = u64::from_le_bytes(word(bytes, 56)?);
    if pages > limit::MEM_SIZE_MIB_MAX * PAGES_PER_MIB {
        return Err("its index states more memory than a guest can have");
    }
    let runs = u64::from_le_bytes(word(bytes, 64)?);
    if body.len() as u64 != runs.saturating_mul(RUN_BYTES as u64) {
        return Err("its index has not the number of runs that it states");
    }
    let (mut stored, mut zero) = (Vec::new(), Vec::new());
    for run in body.chunks_exact(RUN_BYTES) {
        let (start, count) = (u64::from_le_bytes(word(run, 0)?), u64::from_le_bytes(word(run, 8)?));
        let list = if count & ZERO_RUN == 0 { &mut stored } else { &mut zero };
        let run = PageRun::new(start, count & !ZERO_RUN);
        let after_last = list.last().is_none_or(|last: &PageRun| last.end() <= run.start);
        let in_memory = run.count > PageCount::ZERO
            && start.checked_add(run.count.get()).is_some_and(|end| end <= pages);
        if !after_last || !in_memory {
            return Err("its index has runs out of order or beyond guest memory");
        }
        list.push(run);
    }
    let crc = u32::from_le_bytes(word(bytes, 72)?);
    Ok(LayerIndex {
        id: id.clone(),
        kind,
        below,
        memory: PageCount::new(pages).bytes(),
        stored,
        zero,
        pages_crc32: (bytes[7] & HAS_PAGE_CHECKSUM != 0).then_some(crc),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> LayerIndex {
        LayerIndex {
            id: "ly-0123456789abcdef".parse().unwrap(),
            kind: LayerKind::Delta,
            below: Some("ly-fedcba9876543210".parse().unwrap()),
            memory: ByteCount::from_mib(1),
            stored: vec![PageRun::new(0, 3), PageRun::new(255, 1)],
            zero: vec![PageRun::new(3, 2)],
            pages_crc32: Some(77),
        }
    }

    #[test]
    fn an_index_survives_encoding() {
        let index = index();
        assert_eq!(LayerIndex::decode(&index.id, &index.encode()).unwrap(), index);
    }

    #[test]
    fn a_delta_names_the_layer_below_and_a_base_names_none() {
        let delta = LayerIndex { below: None, ..index() };
        let base = LayerIndex { kind: LayerKind::Base, ..index() };
        for wrong in [delta, base] {
            let error = LayerIndex::decode(&wrong.id, &wrong.encode()).unwrap_err();
            assert!(error.to_string().contains("layer below"), "{error}");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused_by_name() {
        let index = index();
        let bytes = index.encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let error = LayerIndex::decode(&index.id, &damaged).unwrap_err();
                assert!(error.to_string().contains(index.id.as_str()), "{error}");
            }
            assert!(LayerIndex::decode(&index.id, &bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn more_memory_than_a_guest_can_have_is_refused() {
        let whole = ByteCount::from_mib(limit::MEM_SIZE_MIB_MAX);
        let largest = LayerIndex { memory: whole, ..index() };
        assert!(LayerIndex::decode(&largest.id, &largest.encode()).is_ok());
        let memory = whole + ByteCount::new(PAGE_BYTES);
        let beyond = LayerIndex { memory, ..index() };
        let error = LayerIndex::decode(&beyond.id, &beyond.encode()).unwrap_err();
        assert!(error.to_string().contains("more memory"), "{error}");
    }

    #[test]
    fn the_index_of_another_layer_is_refused() {
        let other = LayerId::random();
        let error = LayerIndex::decode(&other, &index().encode()).unwrap_err();
        assert!(error.to_string().contains("another layer"), "{error}");
    }

    #[test]
    fn the_format_is_what_it_was() {
        let bytes = index().encode();
        assert_eq!(bytes.len(), 80 + 3 * 16);
        assert_eq!(&bytes[..32], b"FKDL\x02\x00\x01\x01ly-0123456789abcdef\0\0\0\0\0");
        assert_eq!(crc32fast::hash(&bytes), 0xe7ce_8c18, "changed the format? raise VERSION");
    }
}
