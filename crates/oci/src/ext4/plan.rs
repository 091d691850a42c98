//! How large a file system is, and which inode is whose.

use std::collections::HashMap;

use super::{
    BLOCK_BYTES, FIRST_INODE, GROUP_BLOCKS, INODES_PER_BLOCK, JOURNAL_BLOCKS, LOST_AND_FOUND_INODE,
    ROOT_INODE, attributes, folder,
};
use crate::tree::{Content, NodeId, ROOT, Tree};

/// As many bytes of a disk as mke2fs has for each inode.
const BYTES_PER_INODE: u64 = 16384;
/// The most that this format can have in 32 bits, in groups.
const GROUPS_MAX: u64 = (1 << 17) - 1;
/// A file's blocks are counted in 32 bits.
const FILE_BYTES_MAX: u64 = (1 << 32) * BLOCK_BYTES - BLOCK_BYTES;
/// Names of one file.
const LINKS_MAX: u32 = 65_000;

/// Sizes of a file system, and the inodes of its files.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) groups: u32,
    pub(super) inodes_per_group: u32,
    pub(super) uuid: [u8; 16],
    /// Reachable nodes in the order of their inodes.
    pub(super) nodes: Vec<NodeId>,
    pub(super) inodes: HashMap<NodeId, u32>,
    /// Names of each node; of a directory, the directories in it and itself.
    pub(super) links: HashMap<NodeId, u32>,
}

impl Plan {
    /// For the files of `tree` and so much free space. `seed` makes the file system's UUID.
    pub(crate) fn new(tree: &Tree, free_bytes: u64, seed: &str) -> Result<Self, String> {
        let mut plan = Self {
            groups: 0,
            inodes_per_group: 0,
            uuid: uuid(seed),
            nodes: Vec::new(),
            inodes: HashMap::new(),
            links: HashMap::new(),
        };
        let mut blocks = u64::from(JOURNAL_BLOCKS) + 8;
        plan.enter(ROOT, ROOT_INODE);
        let mut folders = vec![ROOT];
        // Its own name and `..`, and the one directory that every file system has.
        plan.links.insert(ROOT, 3);
        while let Some(id) = folders.pop() {
            let Content::Directory(children) = &tree.node(id).content else { continue };
            blocks += folder::blocks(children.keys().map(Vec::len));
            for (name, child) in children {
                if id == ROOT && name == folder::LOST_AND_FOUND {
                    continue;
                }
                let node = child.node;
                let is_folder = matches!(tree.node(node).content, Content::Directory(_));
                if is_folder {
                    folders.push(node);
                    *plan.links.entry(id).or_default() += 1;
                    plan.links.insert(node, 2);
                } else {
                    *plan.links.entry(node).or_default() += 1;
                }
                if plan.inodes.contains_key(&node) {
                    continue;
                }
                let inode = u32::try_from(plan.nodes.len()).map_err(|_| "it has too many files")?;
                plan.enter(node, inode + FIRST_INODE);
                blocks += blocks_of(tree, node)?;
            }
        }
        blocks += attributes::blocks(&tree.node(ROOT).facts.attributes)?;
        if plan.links.iter().any(|(id, links)| *links > LINKS_MAX && !is_directory(tree, *id)) {
            return Err(format!("a file has more than {LINKS_MAX} names"));
        }
        plan.size(blocks + free_bytes.div_ceil(BLOCK_BYTES))?;
        Ok(plan)
    }

    fn enter(&mut self, node: NodeId, inode: u32) {
        self.nodes.push(node);
        self.inodes.insert(node, inode);
    }

    /// As many groups as these blocks need, with what each group has for itself.
    fn size(&mut self, blocks: u64) -> Result<(), String> {
        let inodes = self.nodes.len() as u64 + u64::from(LOST_AND_FOUND_INODE) + 1;
        // Half as many again, so that the guest can make files.
        let inodes = (inodes + inodes / 2).max(blocks * BLOCK_BYTES / BYTES_PER_INODE);
        let group = u64::from(GROUP_BLOCKS);
        let mut groups = blocks.div_ceil(group).max(1);
        loop {
            if groups > GROUPS_MAX {
                return Err("it is larger than 16 TiB".to_owned());
            }
            let unit = u64::from(INODES_PER_BLOCK) * 8;
            let per_group = inodes.div_ceil(groups).next_multiple_of(unit);
            let own = overhead(groups, per_group);
            if per_group <= group && blocks + groups * own <= groups * group {
                let narrow = |value: u64| u32::try_from(value).map_err(|error| error.to_string());
                (self.groups, self.inodes_per_group) = (narrow(groups)?, narrow(per_group)?);
                return Ok(());
            }
            groups += 1;
        }
    }

    /// The size of the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks() * BLOCK_BYTES
    }

    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.groups) * u64::from(GROUP_BLOCKS)
    }

    pub(super) fn inode_blocks(&self) -> u32 {
        self.inodes_per_group / INODES_PER_BLOCK
    }

    /// Blocks of the group descriptors, which follow the superblock and its copies.
    pub(super) fn descriptor_blocks(&self) -> u32 {
        descriptor_blocks(self.groups.into())
    }

    /// Blocks at the beginning of a group that are not for data: superblock, descriptors, two
    /// bitmaps, inodes.
    pub(super) fn own_blocks(&self, group: u32) -> u32 {
        self.before_bitmaps(group) + 2 + self.inode_blocks()
    }

    /// Blocks of the superblock and the descriptors, in groups that have them.
    pub(super) fn before_bitmaps(&self, group: u32) -> u32 {
        if has_superblock(group) { 1 + self.descriptor_blocks() } else { 0 }
    }
}

fn descriptor_blocks(groups: u64) -> u32 {
    let bytes = groups * super::DESCRIPTOR as u64;
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

/// The most blocks that a group has for itself.
fn overhead(groups: u64, inodes_per_group: u64) -> u64 {
    u64::from(descriptor_blocks(groups)) + 3 + inodes_per_group / u64::from(INODES_PER_BLOCK)
}

/// Groups 0 and 1, and the powers of 3, 5 and 7.
pub(super) fn has_superblock(group: u32) -> bool {
    let is_power = |base: u32| {
        let mut power = base;
        while power < group {
            power = power.saturating_mul(base);
        }
        power == group
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power)
}

fn is_directory(tree: &Tree, id: NodeId) -> bool {
    matches!(tree.node(id).content, Content::Directory(_))
}

/// The most blocks that a node has beside its inode; of a directory, without its names.
fn blocks_of(tree: &Tree, id: NodeId) -> Result<u64, String> {
    let node = tree.node(id);
    let content = match &node.content {
        Content::File(size, _) => {
            if size.bytes > FILE_BYTES_MAX {
                return Err("a file has more than 16 TiB".to_owned());
            }
            // Each part can begin and end within a block.
            let parts = size.parts.iter();
            let data: u64 = parts.map(|(_, length)| length.div_ceil(BLOCK_BYTES) + 1).sum();
            data + data / 128 + 8
        }
        Content::Symlink(_) => 1,
        _ => 0,
    };
    Ok(content + attributes::blocks(&node.facts.attributes)?)
}

/// A UUID that depends on the image alone.
fn uuid(seed: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&crate::Digest::of(seed.as_bytes()).as_bytes()[..16]);
    // Version 8: a hash of our own.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
