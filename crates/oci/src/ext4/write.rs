//! Puts a file system into a file.
//!
//! Blocks are given out in ascending order, so what is in use is all that is below the next one,
//! and what each group has for itself.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use super::attributes::{self, Place as AttributePlace};
use super::extents::Runs;
use super::folder::{self, Folder};
use super::inode::{Inode, Place, Type, device};
use super::plan::{Plan, has_superblock};
use super::superblock::{self, Free, OFFSET};
use super::{
    BLOCK, BLOCK_BYTES, DESCRIPTOR, FIRST_INODE, GROUP_BLOCKS, INODE, JOURNAL_BLOCKS,
    JOURNAL_INODE, LOST_AND_FOUND_INODE, Put, ROOT_INODE, low16,
};
use crate::archive::FileSize;
use crate::tree::{Content, Facts, NodeId, ROOT, Tree};

/// So much of a file is looked at for zeros at once.
const CHUNK: usize = 16 * BLOCK;
const CHUNK_BYTES: u64 = CHUNK as u64;
/// The target of a symbolic link that fits in its inode.
const SHORT_LINK: usize = 60;

/// Writes the file system of a tree.
pub(crate) struct Writer<'a> {
    tree: &'a Tree,
    plan: Plan,
    file: File,
    next: u32,
    /// Blocks that were given out.
    used: u64,
    /// Files whose content is there.
    written: HashSet<NodeId>,
    /// Directories in each group.
    folders: HashMap<u32, u32>,
}

/// Content on the disk: what the inode says of it.
struct Stored {
    runs: Runs,
    bytes: u64,
    /// What was given out before it.
    used_before: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(tree: &'a Tree, plan: Plan, file: File) -> io::Result<Self> {
        file.set_len(plan.bytes())?;
        let next = plan.own_blocks(0);
        let (written, folders) = (HashSet::new(), HashMap::new());
        Ok(Self { tree, plan, file, next, used: 0, written, folders })
    }

    /// All nodes that are written.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.plan.nodes
    }

    /// Writes a file whose parts `content` has one after the other.
    pub(crate) fn file(
        &mut self,
        node: NodeId,
        size: &FileSize,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let mut stored =
            Stored { runs: Runs::default(), bytes: size.bytes, used_before: self.used };
        let (mut chunk, mut number) = (vec![0; CHUNK], 0);
        for (offset, length) in &size.parts {
            let (mut at, end) = (*offset, offset + length);
            while at < end {
                if at / CHUNK_BYTES != number {
                    self.chunk(&mut stored, number, &mut chunk)?;
                    number = at / CHUNK_BYTES;
                }
                let from = usize::try_from(at % CHUNK_BYTES).map_err(io::Error::other)?;
                let rest = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK - from);
                content.read_exact(&mut chunk[from..from + rest])?;
                at += rest as u64;
            }
        }
        self.chunk(&mut stored, number, &mut chunk)?;
        self.written.insert(node);
        self.inode_of(node, Type::File, stored)
    }

    /// Writes what a chunk has between its first and its last block that is not zero, and empties
    /// it.
    fn chunk(&mut self, stored: &mut Stored, number: u64, chunk: &mut [u8]) -> io::Result<()> {
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let mut data = chunk.chunks(BLOCK).enumerate().filter(|(_, block)| !is_zero(block));
        let Some((first, _)) = data.next() else { return Ok(()) };
        let last = data.next_back().map_or(first, |(at, _)| at);
        let at = u32::try_from(number * (CHUNK_BYTES / BLOCK_BYTES)).map_err(io::Error::other)?;
        for (index, block) in chunk.chunks(BLOCK).enumerate().take(last + 1).skip(first) {
            let place = self.allocate()?;
            self.file.write_all_at(block, u64::from(place) * BLOCK_BYTES)?;
            stored.runs.add(at + u32::try_from(index).map_err(io::Error::other)?, place);
        }
        chunk.fill(0);
        Ok(())
    }

    /// Writes everything else. The file is a file system then.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let mut parents = vec![(ROOT, ROOT_INODE)];
        while let Some((id, parent)) = parents.pop() {
            let Content::Directory(children) = &self.tree.node(id).content else { continue };
            let own = self.plan.inodes[&id];
            let mut folder = Folder::new(own, parent);
            if id == ROOT {
                folder.add(folder::LOST_AND_FOUND, LOST_AND_FOUND_INODE, folder::Type::Directory);
            }
            for (name, child) in children {
                let Some(inode) = self.plan.inodes.get(&child.node) else { continue };
                let content = &self.tree.node(child.node).content;
                folder.add(name, *inode, type_in_folder(content));
                if matches!(content, Content::Directory(_)) {
                    parents.push((child.node, own));
                }
            }
            let stored = self.store(&folder.finish())?;
            *self.folders.entry(self.group_of(own)).or_default() += 1;
            self.inode_of(id, Type::Directory, stored)?;
        }
        for id in self.plan.nodes.clone() {
            self.other(id)?;
        }
        self.lost_and_found()?;
        let journal = self.journal()?;
        self.groups(&journal)?;
        self.file.sync_all()
    }

    /// What is neither a directory nor a file with content.
    fn other(&mut self, id: NodeId) -> io::Result<()> {
        let place = |kind, place| Some((kind, place, 0));
        let found = match &self.tree.node(id).content {
            Content::Directory(_) => None,
            Content::File(..) if self.written.contains(&id) => None,
            Content::File(..) => return Err(io::Error::other("the content of a file is missing")),
            Content::Symlink(target) if target.len() < SHORT_LINK => {
                let mut inline = [0; SHORT_LINK];
                inline[..target.len()].copy_from_slice(target);
                Some((Type::Symlink, inline, target.len() as u64))
            }
            Content::Symlink(target) => {
                let stored = self.store(target)?;
                return self.inode_of(id, Type::Symlink, stored);
            }
            Content::Character(major, minor) => place(Type::Character, device(*major, *minor)),
            Content::Block(major, minor) => place(Type::Block, device(*major, *minor)),
            Content::Fifo => place(Type::Fifo, [0; 60]),
        };
        let Some((kind, inline, bytes)) = found else { return Ok(()) };
        self.describe(id, kind, Place::Inline(inline), bytes, self.used)
    }

    /// Bytes in blocks.
    fn store(&mut self, bytes: &[u8]) -> io::Result<Stored> {
        let (mut runs, used_before) = (Runs::default(), self.used);
        for (at, block) in (0..).zip(bytes.chunks(BLOCK)) {
            let place = self.allocate()?;
            self.file.write_all_at(block, u64::from(place) * BLOCK_BYTES)?;
            runs.add(at, place);
        }
        Ok(Stored { runs, bytes: bytes.len() as u64, used_before })
    }

    fn allocate(&mut self) -> io::Result<u32> {
        if u64::from(self.next) >= self.plan.blocks() {
            return Err(io::Error::other("the file system is full"));
        }
        let block = self.next;
        self.used += 1;
        self.next += 1;
        if self.next.is_multiple_of(GROUP_BLOCKS) && u64::from(self.next) < self.plan.blocks() {
            self.next += self.plan.own_blocks(self.next / GROUP_BLOCKS);
        }
        Ok(block)
    }

    fn extents(&mut self, runs: &Runs) -> io::Result<Place> {
        let file = self.file.try_clone()?;
        let write = |block, bytes: &[u8]| file.write_all_at(bytes, u64::from(block) * BLOCK_BYTES);
        runs.root(|| self.allocate(), write).map(Place::Extents)
    }

    /// Writes the inode of a node whose content is in blocks.
    fn inode_of(&mut self, id: NodeId, kind: Type, stored: Stored) -> io::Result<()> {
        let place = self.extents(&stored.runs)?;
        self.describe(id, kind, place, stored.bytes, stored.used_before)
    }

    fn describe(
        &mut self,
        id: NodeId,
        kind: Type,
        place: Place,
        bytes: u64,
        used_before: u64,
    ) -> io::Result<()> {
        let facts = &self.tree.node(id).facts;
        let attributes = attributes::place(&facts.attributes).map_err(io::Error::other)?;
        let (attributes, attribute_block) = match attributes {
            AttributePlace::Inode(bytes) => (bytes, 0),
            AttributePlace::Block(bytes) => {
                let block = self.allocate()?;
                self.file.write_all_at(&bytes, u64::from(block) * BLOCK_BYTES)?;
                (Vec::new(), block)
            }
        };
        let inode = Inode {
            kind,
            facts,
            bytes,
            links: self.plan.links.get(&id).copied().unwrap_or(1),
            blocks: self.used - used_before,
            place,
            attribute_block,
            attributes: &attributes,
        };
        self.write_inode(self.plan.inodes[&id], &inode.encode())
    }

    fn group_of(&self, inode: u32) -> u32 {
        (inode - 1) / self.plan.inodes_per_group
    }

    fn write_inode(&self, number: u32, inode: &[u8; INODE]) -> io::Result<()> {
        let group = self.group_of(number);
        let table = group * GROUP_BLOCKS + self.plan.before_bitmaps(group) + 2;
        let index = (number - 1) % self.plan.inodes_per_group;
        let at = u64::from(table) * BLOCK_BYTES + u64::from(index) * INODE as u64;
        self.file.write_all_at(inode, at)
    }

    fn lost_and_found(&mut self) -> io::Result<()> {
        let stored = self.store(&Folder::new(LOST_AND_FOUND_INODE, ROOT_INODE).finish())?;
        *self.folders.entry(self.group_of(LOST_AND_FOUND_INODE)).or_default() += 1;
        let facts = Facts::of_root(0o700);
        let encoded = self.own_inode(Type::Directory, &facts, &stored, 2)?;
        self.write_inode(LOST_AND_FOUND_INODE, &encoded)
    }

    /// Gives the inode of the journal, which the superblock has a copy of.
    fn journal(&mut self) -> io::Result<[u8; INODE]> {
        let (mut runs, used_before) = (Runs::default(), self.used);
        let first = self.next;
        for at in 0..JOURNAL_BLOCKS {
            let block = self.allocate()?;
            runs.add(at, block);
        }
        let bytes = superblock::journal(&self.plan);
        self.file.write_all_at(&bytes, u64::from(first) * BLOCK_BYTES)?;
        let stored = Stored { runs, bytes: u64::from(JOURNAL_BLOCKS) * BLOCK_BYTES, used_before };
        let facts = Facts::of_root(0o600);
        let encoded = self.own_inode(Type::File, &facts, &stored, 1)?;
        self.write_inode(JOURNAL_INODE, &encoded)?;
        Ok(encoded)
    }

    /// An inode that no file of the tree has.
    fn own_inode(
        &mut self,
        kind: Type,
        facts: &Facts,
        stored: &Stored,
        links: u32,
    ) -> io::Result<[u8; INODE]> {
        let place = self.extents(&stored.runs)?;
        let (bytes, blocks) = (stored.bytes, self.used - stored.used_before);
        let (attribute_block, attributes) = (0, &[][..]);
        let inode = Inode { kind, facts, bytes, links, blocks, place, attribute_block, attributes };
        Ok(inode.encode())
    }

    /// Bitmaps, descriptors and superblocks.
    fn groups(&self, journal: &[u8]) -> io::Result<()> {
        let mut descriptors = vec![0; self.plan.descriptor_blocks() as usize * BLOCK];
        // The root comes first among the nodes, and has an inode of its own.
        let inodes_used = u32::try_from(self.plan.nodes.len()).map_err(io::Error::other)? - 1;
        let last_inode = FIRST_INODE + inodes_used;
        let mut free = Free { blocks: 0, inodes: 0 };
        for group in 0..self.plan.groups {
            let start = group * GROUP_BLOCKS;
            let used = self.next.saturating_sub(start).min(GROUP_BLOCKS);
            let used = used.max(self.plan.own_blocks(group));
            let inodes = last_inode.saturating_sub(group * self.plan.inodes_per_group);
            let inodes = inodes.min(self.plan.inodes_per_group);
            let bitmap = start + self.plan.before_bitmaps(group);
            let at = u64::from(bitmap) * BLOCK_BYTES;
            self.file.write_all_at(&bits(used, GROUP_BLOCKS), at)?;
            let inode_bits = bits(inodes, self.plan.inodes_per_group);
            self.file.write_all_at(&inode_bits, at + BLOCK_BYTES)?;
            let descriptor = &mut descriptors[group as usize * DESCRIPTOR..][..DESCRIPTOR];
            descriptor.put32(0, bitmap);
            descriptor.put32(4, bitmap + 1);
            descriptor.put32(8, bitmap + 2);
            let free_inodes = self.plan.inodes_per_group - inodes;
            descriptor.put16(12, low16(GROUP_BLOCKS - used));
            descriptor.put16(14, low16(free_inodes));
            descriptor.put16(16, low16(self.folders.get(&group).copied().unwrap_or_default()));
            free.blocks += u64::from(GROUP_BLOCKS - used);
            free.inodes += free_inodes;
        }
        for group in (0..self.plan.groups).filter(|group| has_superblock(*group)) {
            let at = u64::from(group) * u64::from(GROUP_BLOCKS) * BLOCK_BYTES;
            let offset = if group == 0 { OFFSET as u64 } else { 0 };
            let bytes = superblock::encode(&self.plan, &free, group, journal);
            self.file.write_all_at(&bytes, at + offset)?;
            self.file.write_all_at(&descriptors, at + BLOCK_BYTES)?;
        }
        Ok(())
    }
}

/// A bitmap with the first `used` of `all` set, and what is not there too.
fn bits(used: u32, all: u32) -> Vec<u8> {
    let is_set = |bit: u32| bit < used || bit >= all;
    let byte = |at: u32| (0..8).fold(0, |byte, bit| byte | u8::from(is_set(at * 8 + bit)) << bit);
    (0..GROUP_BLOCKS / 8).map(byte).collect()
}

fn type_in_folder(content: &Content) -> folder::Type {
    match content {
        Content::Directory(_) => folder::Type::Directory,
        Content::File(..) => folder::Type::File,
        Content::Symlink(_) => folder::Type::Symlink,
        Content::Character(..) => folder::Type::Character,
        Content::Block(..) => folder::Type::Block,
        Content::Fifo => folder::Type::Fifo,
    }
}
