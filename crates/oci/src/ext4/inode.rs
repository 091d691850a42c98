//! What one inode says.

use super::{INODE, Put, high16, high32, low16, low32};
use crate::archive::Time;
use crate::tree::Facts;

/// The block list is a tree of extents.
const EXTENTS: u32 = 0x8_0000;
/// Bytes after the first 128 that have fields.
const EXTRA: u16 = 32;
/// Times are 34 bits of seconds from 1901 on.
const SECONDS: std::ops::RangeInclusive<i64> = -(1 << 31)..=(1 << 34) - (1 << 31) - 1;

/// The type of a file, as its mode has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    Fifo = 0x1000,
    Character = 0x2000,
    Directory = 0x4000,
    Block = 0x6000,
    File = 0x8000,
    Symlink = 0xa000,
}

/// Everything that an inode says.
pub(super) struct Inode<'a> {
    pub(super) kind: Type,
    pub(super) facts: &'a Facts,
    pub(super) bytes: u64,
    pub(super) links: u32,
    /// Blocks of its content and of what is about it.
    pub(super) blocks: u64,
    pub(super) place: Place,
    /// A block of attributes.
    pub(super) attribute_block: u32,
    /// Attributes that fit here.
    pub(super) attributes: &'a [u8],
}

/// Where the content is.
pub(super) enum Place {
    /// In blocks that these extents list.
    Extents([u8; 60]),
    /// Here.
    Inline([u8; 60]),
}

impl Inode<'_> {
    pub(super) fn encode(&self) -> [u8; INODE] {
        let mut inode = [0; INODE];
        let facts = self.facts;
        inode.put16(0, self.kind as u16 | facts.mode & 0o7777);
        inode.put16(2, low16(facts.user));
        inode.put32(4, low32(self.bytes));
        let (seconds, extra) = time(facts.modified);
        for (at, at_extra) in [(8, 140), (12, 132), (16, 136), (144, 148)] {
            inode.put32(at, seconds);
            inode.put32(at_extra, extra);
        }
        inode.put16(24, low16(facts.group));
        // A directory with more names than can be counted has one.
        inode.put16(26, u16::try_from(self.links).ok().filter(|n| *n < 65_000).unwrap_or(1));
        let sectors = self.blocks * 8;
        inode.put32(28, low32(sectors));
        inode.put16(116, low16(high32(sectors)));
        let (flags, place) = match &self.place {
            Place::Extents(place) => (EXTENTS, place),
            Place::Inline(place) => (0, place),
        };
        inode.put32(32, flags);
        inode[40..100].copy_from_slice(place);
        inode.put32(104, self.attribute_block);
        inode.put32(108, high32(self.bytes));
        inode.put16(120, high16(facts.user));
        inode.put16(122, high16(facts.group));
        inode.put16(128, EXTRA);
        inode[160..160 + self.attributes.len()].copy_from_slice(self.attributes);
        inode
    }
}

/// 32 bits of seconds; 2 more bits of them below the nanoseconds.
fn time(time: Time) -> (u32, u32) {
    let seconds = time.seconds.clamp(*SECONDS.start(), *SECONDS.end());
    let low = low32(seconds.cast_unsigned());
    let epoch = (seconds - i64::from(low.cast_signed())) >> 32;
    let epoch = low32(epoch.cast_unsigned()) & 3;
    (low, time.nanoseconds.min(999_999_999) << 2 | epoch)
}

/// The number of a device, which has its place among the extents.
pub(super) fn device(major: u32, minor: u32) -> [u8; 60] {
    let mut place = [0; 60];
    if major < 256 && minor < 256 {
        place.put32(0, major << 8 | minor);
    } else {
        place.put32(4, minor & 0xff | major << 8 | (minor & !0xff) << 12);
    }
    place
}
