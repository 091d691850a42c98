//! The index of a layer as a disk may give it back: read or refused, and what was read lies within
//! guest memory, in order, and is written as the same again.

use forkd_store::{LayerIndex, LayerKind};
use forkd_types::{ByteCount, LayerId, PageRun};

const HEADER_BYTES: usize = 80;
const ID: &str = "ly-0123456789abcdef";

/// The file's content. It is looked at as it is, and with its checksum made right, because a search
/// would not find one.
pub fn check(file: &[u8]) {
    look(file);
    if file.len() >= HEADER_BYTES {
        let mut file = file.to_vec();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&file[..HEADER_BYTES - 4]);
        hasher.update(&file[HEADER_BYTES..]);
        file[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&hasher.finalize().to_le_bytes());
        look(&file);
    }
}

fn look(file: &[u8]) {
    let id: LayerId = ID.parse().expect("a good id");
    let index = match LayerIndex::decode(&id, file) {
        Ok(index) => index,
        Err(error) => return assert!(error.to_string().contains(ID), "the layer is not named"),
    };
    let pages = index.memory.get() / forkd_types::PAGE_BYTES;
    for runs in [&index.stored, &index.zero] {
        let mut before = 0;
        for run in runs {
            assert!(run.start.get() >= before && run.count.get() > 0, "out of order");
            before = run.end().get();
            assert!(before <= pages, "beyond guest memory");
        }
    }
    assert!(index.stored_bytes().get() <= index.memory.get());
    let again = LayerIndex::decode(&id, &index.encode()).expect("what was encoded can be read");
    assert_eq!(again, index, "read again, it differs");
}

/// A delta, a base, and one with nothing.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let delta = LayerIndex {
        id: ID.parse().expect("a good id"),
        kind: LayerKind::Delta,
        below: Some("ly-fedcba9876543210".parse().expect("a good id")),
        memory: ByteCount::from_mib(64),
        stored: vec![PageRun::new(0, 3), PageRun::new(255, 1)],
        zero: vec![PageRun::new(3, 2)],
        pages_crc32: Some(77),
    };
    let base = LayerIndex {
        kind: LayerKind::Base,
        below: None,
        zero: Vec::new(),
        pages_crc32: None,
        ..delta.clone()
    };
    let empty = LayerIndex { stored: Vec::new(), ..base.clone() };
    vec![delta.encode(), base.encode(), empty.encode()]
}
