//! Layers: archives of changes, compressed or not, merged into a tree.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};

use flate2::read::MultiGzDecoder;

use crate::archive::{Archive, Entry, Kind};
use crate::hashing::Hashing;
use crate::limit::{CONTENT_BYTES_MAX, ENTRIES_MAX, NAMES_BYTES_MAX, PATH_BYTES_MAX};
use crate::source::Watch;
use crate::tree::{Content, Facts, Node, Origin, Tree, shown};
use crate::{Digest, OciError};

/// A name that begins so is not a file: it hides one of a lower layer.
const WHITEOUT: &[u8] = b".wh.";
/// The rest of a whiteout's name that hides all that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..opq";

/// So many entries are read between two looks at whether somebody still wants the image.
const LOOK_EVERY: u64 = 256;

const BUFFER_BYTES: usize = 256 << 10;

/// What the layers so far have had.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    entries: u64,
    names: u64,
    content: u64,
}

/// The archive in a blob, whatever its compression, which its first bytes tell.
pub(crate) fn unpacked(blob: &File, what: &str) -> Result<Box<dyn Read>, OciError> {
    let broken = |error: io::Error| OciError::damaged(what, error);
    let mut file = blob.try_clone().map_err(broken)?;
    file.rewind().map_err(broken)?;
    let mut magic = Vec::new();
    (&mut file).take(6).read_to_end(&mut magic).map_err(broken)?;
    file.rewind().map_err(broken)?;
    let file = BufReader::with_capacity(BUFFER_BYTES, file);
    let unsupported = |kind: &str| OciError::Unsupported {
        what: format!("{what}, which is compressed with {kind},"),
        remedy: "use an image with layers in gzip or zstd".to_owned(),
    };
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(file)),
        // A frame, or one to be skipped.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(zstd::Decoder::with_buffer(file).map_err(broken)?)
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => return Err(unsupported("xz")),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2")),
        _ => Box::new(file),
    })
}

/// Merges the layer `number` into the tree. Its unpacked bytes must have the digest `wanted`.
pub(crate) fn merge(
    blob: &File,
    number: usize,
    wanted: &Digest,
    tree: &mut Tree,
    totals: &mut Totals,
    watch: &dyn Watch,
) -> Result<(), OciError> {
    let what = format!("layer {}", number + 1);
    let input = Hashing::new(unpacked(blob, &what)?);
    let mut archive = Archive::new(input);
    tree.begin_layer(number);
    merge_archive(&mut archive, number, &what, tree, totals, watch)?;
    let found = archive.into_inner().finish(CONTENT_BYTES_MAX);
    let found = found.map_err(|error| OciError::damaged(&what, error))?;
    if found != *wanted {
        let what = format!("{what}, unpacked,");
        return Err(OciError::Digest { what, wanted: *wanted, found });
    }
    Ok(())
}

pub(crate) fn merge_archive(
    archive: &mut Archive<impl Read>,
    number: usize,
    what: &str,
    tree: &mut Tree,
    totals: &mut Totals,
    watch: &dyn Watch,
) -> Result<(), OciError> {
    let mut position = 0;
    while let Some(entry) = archive.next().map_err(|error| OciError::damaged(what, error))? {
        if position % LOOK_EVERY == 0 && watch.is_cancelled() {
            return Err(OciError::Cancelled);
        }
        totals.add(&entry)?;
        let path = entry.path.clone();
        place(tree, entry, Origin::Layer(number, position)).map_err(|problem| {
            OciError::damaged(what, format!("the entry `{}`: {problem}", shown(&path)))
        })?;
        position += 1;
    }
    Ok(())
}

/// Does what one entry says.
fn place(tree: &mut Tree, entry: Entry, origin: Origin) -> Result<(), String> {
    let end = entry.path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &entry.path[..end];
    let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], path),
    };
    if let Some(hidden) = name.strip_prefix(WHITEOUT) {
        return match hidden {
            OPAQUE => tree.hide_all(folder),
            b"" | b"." | b".." => Err("it hides nothing that can have a name".to_owned()),
            // What AUFS kept for itself.
            _ if hidden.starts_with(WHITEOUT) => Ok(()),
            _ => tree.hide(&[folder, b"/", hidden].concat()),
        };
    }
    let content = match entry.kind {
        Kind::HardLink(target) => return tree.link(path, &target),
        Kind::File(size) => Content::File(size, origin),
        Kind::Symlink(target) if target.is_empty() || target.len() > PATH_BYTES_MAX => {
            return Err("its target is empty or too long".to_owned());
        }
        Kind::Symlink(target) => Content::Symlink(target),
        Kind::Directory => Content::Directory(Default::default()),
        Kind::Character(major, minor) => Content::Character(major, minor),
        Kind::Block(major, minor) => Content::Block(major, minor),
        Kind::Fifo => Content::Fifo,
    };
    let facts = Facts {
        mode: entry.mode,
        user: entry.user,
        group: entry.group,
        modified: entry.modified,
        attributes: entry.attributes,
    };
    tree.put(path, Node { content, facts })
}

impl Totals {
    fn add(&mut self, entry: &Entry) -> Result<(), OciError> {
        let too_large = |what: &str, max: String| OciError::TooLarge { what: what.to_owned(), max };
        let attributes = entry.attributes.iter().map(|(name, value)| name.len() + value.len());
        let (target, content) = match &entry.kind {
            Kind::HardLink(target) | Kind::Symlink(target) => (target.len(), 0),
            Kind::File(size) => (16 * size.parts.len(), size.parts.iter().map(|part| part.1).sum()),
            _ => (0, 0),
        };
        let names = entry.path.len() + attributes.sum::<usize>() + target;
        self.entries += 1;
        self.names = self.names.saturating_add(names as u64);
        self.content = self.content.saturating_add(content);
        if self.entries > ENTRIES_MAX {
            return Err(too_large("the image", format!("{ENTRIES_MAX} entries")));
        }
        if self.names > NAMES_BYTES_MAX {
            return Err(too_large("the image", format!("{NAMES_BYTES_MAX} bytes of names")));
        }
        if self.content > CONTENT_BYTES_MAX {
            return Err(too_large("the image", format!("{CONTENT_BYTES_MAX} bytes of files")));
        }
        Ok(())
    }
}

/// Reads the layer `number` again and hands over each file that `wants` names by its entry.
pub(crate) fn contents(
    blob: &File,
    number: usize,
    watch: &dyn Watch,
    mut wants: impl FnMut(u64, &mut dyn Read) -> Result<(), OciError>,
) -> Result<(), OciError> {
    let what = format!("layer {}", number + 1);
    let mut archive = Archive::new(unpacked(blob, &what)?);
    let mut position = 0;
    while archive.next().map_err(|error| OciError::damaged(&what, error))?.is_some() {
        if watch.is_cancelled() {
            return Err(OciError::Cancelled);
        }
        wants(position, &mut archive)?;
        position += 1;
    }
    Ok(())
}
