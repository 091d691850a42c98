//! The superblock, the descriptors of the groups, and the superblock of the journal.

use super::plan::Plan;
use super::{
    BLOCK, FIRST_INODE, GROUP_BLOCKS, INODE, JOURNAL_BLOCKS, JOURNAL_INODE, Put, low16, low32,
};

/// Where the superblock is in the first block.
pub(super) const OFFSET: usize = 1024;
const SUPERBLOCK: usize = 1024;

/// Journal, extended attributes, directories that may get an index.
const COMPATIBLE: u32 = 0x4 | 0x8 | 0x20;
/// Types in directories, extents.
const INCOMPATIBLE: u32 = 0x2 | 0x40;
/// Few copies of the superblock, large files, more of them, any number of directories, large
/// inodes.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40;
/// Extended attributes and access lists, as mke2fs has it.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;

/// What is free in all groups together.
pub(super) struct Free {
    pub(super) blocks: u64,
    pub(super) inodes: u32,
}

/// `journal` is the journal's inode.
pub(super) fn encode(plan: &Plan, free: &Free, group: u32, journal: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK];
    for (at, value) in [
        (0, plan.groups * plan.inodes_per_group),
        (4, low32(plan.blocks())),
        (12, low32(free.blocks)),
        (16, free.inodes),
        // Blocks and clusters of 1 KiB shifted by 2.
        (24, 2),
        (28, 2),
        (32, GROUP_BLOCKS),
        (36, GROUP_BLOCKS),
        (40, plan.inodes_per_group),
        // A revision with features.
        (76, 1),
        (84, FIRST_INODE),
        (92, COMPATIBLE),
        (96, INCOMPATIBLE),
        (100, READ_ONLY_COMPATIBLE),
        (224, JOURNAL_INODE),
        (256, MOUNT_OPTIONS),
        // Names are hashed as signed characters.
        (352, 1),
    ] {
        bytes.put32(at, value);
    }
    for (at, value) in [
        // It is never checked because of how often it was mounted.
        (54, u16::MAX),
        (56, 0xef53),
        // Clean; go on after an error.
        (58, 1),
        (60, 1),
        (88, low16(u32::try_from(INODE).unwrap_or_default())),
        (90, low16(group)),
        (348, 32),
        (350, 32),
    ] {
        bytes.put16(at, value);
    }
    bytes[104..120].copy_from_slice(&plan.uuid);
    bytes[236..252].copy_from_slice(&plan.uuid);
    // Half MD4, and a copy of where the journal is.
    bytes[252] = 1;
    bytes[253] = 1;
    bytes[268..328].copy_from_slice(&journal[40..100]);
    bytes[328..332].copy_from_slice(&journal[108..112]);
    bytes[332..336].copy_from_slice(&journal[4..8]);
    bytes
}

/// The superblock of a journal that is empty. Its numbers are big-endian.
pub(super) fn journal(plan: &Plan) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let block = u32::try_from(BLOCK).unwrap_or_default();
    for (at, value) in [
        (0, 0xc03b_3998_u32),
        // A superblock of the second version.
        (4, 4),
        (12, block),
        (16, JOURNAL_BLOCKS),
        // The first block and the first transaction.
        (20, 1),
        (24, 1),
        // One file system uses it.
        (64, 1),
    ] {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes[48..64].copy_from_slice(&plan.uuid);
    bytes
}
