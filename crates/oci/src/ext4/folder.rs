//! What the blocks of a directory hold: names and their inodes, one after the other.

use super::{BLOCK, Put};

/// The directory where file system checks put what they find.
pub(super) const LOST_AND_FOUND: &[u8] = b"lost+found";

/// What a name is a name of, so that nobody must look.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    File = 1,
    Directory = 2,
    Character = 3,
    Block = 4,
    Fifo = 5,
    Symlink = 7,
}

/// Bytes of an entry without its name.
const HEAD: usize = 8;

const fn length(name: usize) -> usize {
    (HEAD + name).next_multiple_of(4)
}

/// The most blocks of a directory that has names of these lengths.
pub(super) fn blocks(names: impl Iterator<Item = usize>) -> u64 {
    // An entry does not cross blocks: at the end of each, room for less than one may be left.
    let bytes: usize = names.map(length).sum::<usize>() + 4 * HEAD;
    bytes.div_ceil(BLOCK - length(crate::limit::NAME_BYTES_MAX)) as u64
}

/// Blocks of a directory, filled entry by entry.
#[derive(Debug)]
pub(super) struct Folder {
    bytes: Vec<u8>,
    /// The last entry, which reaches to the end of its block.
    last: usize,
    /// The end of what the last entry needs.
    end: usize,
}

impl Folder {
    pub(super) fn new(own: u32, parent: u32) -> Self {
        let mut folder = Self { bytes: Vec::new(), last: 0, end: 0 };
        folder.add(b".", own, Type::Directory);
        folder.add(b"..", parent, Type::Directory);
        folder
    }

    pub(super) fn add(&mut self, name: &[u8], inode: u32, kind: Type) {
        let needed = length(name.len());
        if self.end + needed > self.bytes.len() {
            self.end = self.bytes.len();
            self.bytes.resize(self.end + BLOCK, 0);
        } else {
            let shorter = self.end - self.last;
            self.bytes.put16(self.last + 4, u16::try_from(shorter).unwrap_or_default());
        }
        let at = self.end;
        let to_end = self.bytes.len() - at;
        self.bytes.put32(at, inode);
        self.bytes.put16(at + 4, u16::try_from(to_end).unwrap_or_default());
        self.bytes[at + 6] = u8::try_from(name.len()).unwrap_or_default();
        self.bytes[at + 7] = kind as u8;
        self.bytes[at + HEAD..at + HEAD + name.len()].copy_from_slice(name);
        (self.last, self.end) = (at, at + needed);
    }

    /// Whole blocks.
    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
