//! An ext4 file system, written into a sparse file from beginning to end.
//!
//! ```text
//! group 0: superblock, descriptors, bitmaps, inodes, journal, data   group 1: ...
//! ```
//!
//! `plan` decides how large it is and which inode is whose, `inode` what one inode says, `extents`
//! where the blocks of a file are, `folder` what a directory's blocks hold, `attributes` extended
//! attributes, `write` puts all of it into the file.
//!
//! Guarantees: equal trees give equal bytes; what was written passes `e2fsck -f`; blocks of zeros
//! are holes. It has a journal, extents, 32-bit owners and times with nanoseconds.
//!
//! Does not do: checksums of metadata, which need to be computed for the guest's every write;
//! encryption, quotas, file systems of more than 16 TiB.

mod attributes;
mod extents;
mod folder;
mod inode;
mod plan;
mod superblock;
mod write;

pub(crate) use plan::Plan;
pub(crate) use write::Writer;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCK_BYTES: u64 = BLOCK as u64;
/// A group's bitmap is one block.
const GROUP_BLOCKS: u32 = 32768;
const INODE: usize = 256;
/// Bytes of a group's descriptor.
const DESCRIPTOR: usize = 32;
const INODES_PER_BLOCK: u32 = 16;
/// Inodes before this one have meanings of their own.
const FIRST_INODE: u32 = 11;
const ROOT_INODE: u32 = 2;
const JOURNAL_INODE: u32 = 8;
const LOST_AND_FOUND_INODE: u32 = FIRST_INODE;
const JOURNAL_BLOCKS: u32 = 2048;

/// Puts numbers into blocks, little-endian as ext4 has them.
trait Put {
    fn put16(&mut self, at: usize, value: u16);
    fn put32(&mut self, at: usize, value: u32);
}

impl Put for [u8] {
    fn put16(&mut self, at: usize, value: u16) {
        self[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// The lower 16 bits.
const fn low16(value: u32) -> u16 {
    let [a, b, _, _] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The upper 16 bits.
const fn high16(value: u32) -> u16 {
    let [_, _, c, d] = value.to_le_bytes();
    u16::from_le_bytes([c, d])
}

/// The lower 32 bits.
const fn low32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The upper 32 bits.
const fn high32(value: u64) -> u32 {
    low32(value >> 32)
}
