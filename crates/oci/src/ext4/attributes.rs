//! Extended attributes: in the inode if they fit there, else in a block of their own.

use super::{BLOCK, Put};

const MAGIC: u32 = 0xea02_0000;
/// Bytes of an inode that attributes may have.
pub(super) const IN_INODE: usize = 96;
/// Bytes of an entry without its name.
const ENTRY: usize = 16;
/// Bytes at the beginning of a block of attributes.
const BLOCK_HEAD: usize = 32;
/// The zeros that end the entries.
const END: usize = 4;

/// How ext4 writes the beginning of a name. What begins otherwise is not kept: access lists have a
/// format of their own, and what overlay file systems note is about another file system.
const PREFIXES: [(&[u8], u8); 3] = [(b"user.", 1), (b"trusted.", 4), (b"security.", 6)];
const NOT_KEPT: &[u8] = b"trusted.overlay.";

/// An attribute: how its name begins, the rest of it, its value.
type Attribute<'a> = (u8, &'a [u8], &'a [u8]);

/// Where the attributes of a file are.
pub(super) enum Place {
    /// After the other fields of its inode.
    Inode(Vec<u8>),
    Block(Vec<u8>),
}

/// Blocks that are needed for attributes.
pub(super) fn blocks(attributes: &[(Vec<u8>, Vec<u8>)]) -> Result<u64, String> {
    Ok(matches!(place(attributes)?, Place::Block(_)).into())
}

/// The bytes of attributes.
pub(super) fn place(attributes: &[(Vec<u8>, Vec<u8>)]) -> Result<Place, String> {
    let mut kept: Vec<Attribute<'_>> = Vec::new();
    for (name, value) in attributes.iter().filter(|(name, _)| !name.starts_with(NOT_KEPT)) {
        let known = PREFIXES.iter().find_map(|(prefix, index)| {
            let rest = name.strip_prefix(*prefix)?;
            Some((*index, rest, value.as_slice()))
        });
        let Some(attribute) = known else { continue };
        if attribute.1.is_empty() || attribute.1.len() > 255 || attribute.1.contains(&0) {
            return Err("an extended attribute has a name that ext4 cannot have".to_owned());
        }
        // The last one counts.
        kept.retain(|earlier| (earlier.0, earlier.1) != (attribute.0, attribute.1));
        kept.push(attribute);
    }
    if kept.is_empty() {
        return Ok(Place::Inode(Vec::new()));
    }
    // A block has them in this order.
    kept.sort_by_key(|(index, name, _)| (*index, name.len(), *name));
    let entry = |(_, name, value): &Attribute<'_>| {
        ENTRY + name.len().next_multiple_of(4) + value.len().next_multiple_of(4)
    };
    let needed = kept.iter().map(entry).sum::<usize>() + END;
    if needed + 4 <= IN_INODE {
        let mut bytes = vec![0; IN_INODE];
        bytes.put32(0, MAGIC);
        fill(&mut bytes[4..], 0, &kept);
        return Ok(Place::Inode(bytes));
    }
    if needed + BLOCK_HEAD > BLOCK {
        return Err(format!("a file has more than {BLOCK} bytes of extended attributes"));
    }
    let mut bytes = vec![0; BLOCK];
    bytes.put32(0, MAGIC);
    // One file refers to it, and it is one block.
    bytes.put32(4, 1);
    bytes.put32(8, 1);
    let hashes = fill(&mut bytes, BLOCK_HEAD, &kept);
    let hash = hashes.iter().fold(0_u32, |hash, entry| hash.rotate_left(16) ^ entry);
    bytes.put32(12, hash);
    Ok(Place::Block(bytes))
}

/// Writes entries from `at` on, and their values from the end backwards. Gives their hashes.
fn fill(bytes: &mut [u8], mut at: usize, attributes: &[Attribute<'_>]) -> Vec<u32> {
    let mut value_at = bytes.len();
    let mut hashes = Vec::new();
    for (index, name, value) in attributes {
        value_at -= value.len().next_multiple_of(4);
        bytes[value_at..value_at + value.len()].copy_from_slice(value);
        bytes[at] = u8::try_from(name.len()).unwrap_or_default();
        bytes[at + 1] = *index;
        bytes.put16(at + 2, u16::try_from(value_at).unwrap_or_default());
        bytes.put32(at + 8, u32::try_from(value.len()).unwrap_or_default());
        let hash = hash(name, value);
        bytes.put32(at + 12, hash);
        bytes[at + ENTRY..at + ENTRY + name.len()].copy_from_slice(name);
        at += ENTRY + name.len().next_multiple_of(4);
        hashes.push(hash);
    }
    hashes
}

fn hash(name: &[u8], value: &[u8]) -> u32 {
    let of_name = name.iter().fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    value.chunks(4).fold(of_name, |hash, word| {
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        hash.rotate_left(16) ^ u32::from_le_bytes(bytes)
    })
}
