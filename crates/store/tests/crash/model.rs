//! The reference: what the store must hold, kept as plainly as possible.

use std::collections::BTreeMap;

use forkd_store::SnapshotRow;
use forkd_types::{OverlayId, SnapshotStatus};
use serde::{Deserialize, Serialize};

/// Pages of each machine.
pub(crate) const PAGES: usize = 64;
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Pseudo-random numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll() % (bound.max(1) as u64)).unwrap()
    }

    pub(crate) fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

pub(crate) fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// What one snapshot holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    /// For each page the number that its bytes follow from; 0 is a page of zeros.
    pub(crate) memory: Vec<u64>,
    /// Its overlays, lowest first, with the numbers that their bytes follow from.
    pub(crate) disk: Vec<(OverlayId, u64)>,
    /// The number that its device state follows from.
    pub(crate) device: u64,
}

/// The bytes of page `page` that was written with the number `number`.
pub(crate) fn page_bytes(number: u64, page: usize) -> Vec<u8> {
    match number {
        0 => vec![0; PAGE],
        number => bytes(number ^ mixed(page as u64 + 1), PAGE),
    }
}

/// The bytes of an overlay: a header of qcow2 that names no other file, and others.
pub(crate) fn overlay_bytes(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 120];
    bytes[..4].copy_from_slice(b"QFI\xfb");
    (bytes[7], bytes[103]) = (3, 112);
    bytes.extend(file_bytes(number));
    bytes
}

/// The bytes of device state.
pub(crate) fn file_bytes(number: u64) -> Vec<u8> {
    let length = 1000 + usize::try_from(number % 20_000).unwrap();
    bytes(number, length)
}

fn bytes(number: u64, length: usize) -> Vec<u8> {
    let mut dice = Dice::new(number);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(dice.roll().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A row, as far as the model goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) status: SnapshotStatus,
    pub(crate) durable: bool,
    /// Names the content: tags are used again.
    pub(crate) content: String,
    pub(crate) parent: Option<String>,
}

impl Entry {
    pub(crate) fn of(row: &SnapshotRow) -> Self {
        Self {
            status: row.status,
            durable: row.durable,
            content: row.manifest.image_hash.clone(),
            parent: row.manifest.parent_tag.as_ref().map(ToString::to_string),
        }
    }
}

/// All rows at one moment.
pub(crate) type Rows = BTreeMap<String, Entry>;

/// A change of rows that is made at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// A removed row.
    pub(crate) removed: Option<String>,
    /// Rows that are put.
    pub(crate) put: Vec<(String, Entry)>,
}

impl Change {
    pub(crate) fn put(row: &SnapshotRow) -> Self {
        Self { removed: None, put: vec![(row.tag.to_string(), Entry::of(row))] }
    }

    fn apply(&self, rows: &Rows) -> Rows {
        let mut rows = rows.clone();
        rows.retain(|tag, _| self.removed.as_ref() != Some(tag));
        rows.extend(self.put.iter().cloned());
        rows
    }
}

/// The states that the registry went through, and which of them it may be found in.
#[derive(Debug, Clone)]
pub(crate) struct History {
    states: Vec<Rows>,
    /// Begun, and not known to be done.
    pending: Option<Change>,
    /// The states before this one are past: what came after them is on the disk.
    flushed: usize,
}

impl History {
    pub(crate) fn new(rows: Rows) -> Self {
        Self { states: vec![rows], pending: None, flushed: 0 }
    }

    pub(crate) fn begin(&mut self, change: Change) {
        // One that was begun before and not done was refused.
        self.pending = Some(change);
    }

    pub(crate) fn done(&mut self) {
        if let Some(change) = self.pending.take() {
            self.states.push(change.apply(&self.states[self.states.len() - 1]));
        }
    }

    pub(crate) fn flushed(&mut self) {
        self.flushed = self.states.len() - 1;
    }

    /// The states that may be found when the process was killed; with the power lost as well, the
    /// last changes may be lost, in their order.
    pub(crate) fn possible(&self, power_lost: bool) -> Vec<Rows> {
        let last = self.states.len() - 1;
        let from = if power_lost { self.flushed } else { last };
        let mut possible = self.states[from..].to_vec();
        possible.extend(self.pending.iter().map(|change| change.apply(&self.states[last])));
        possible
    }
}
