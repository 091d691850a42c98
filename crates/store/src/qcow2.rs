//! What the header of a qcow2 file asks its reader to open besides, and whether forkd allows it.
//!
//! A VMM writes its overlays, header included, and keeps them open after a branch has frozen them.
//! So a VMM that was taken over can write a header that sends the next reader, another VMM or
//! `qemu-img`, to a file of its choice: as external data file, or as backing file.
//!
//! Guarantees: an accepted header names no data file, and has only features that overlays of forkd
//! have. It may name a backing file, which the caller compares with the one that it expects.
//!
//! Does not do: read tables or clusters. QEMU checks that they lie within the file.

use std::path::{Path, PathBuf};

use forkd_types::ByteCount;

const MAGIC: [u8; 4] = *b"QFI\xfb";
const VERSION: u32 = 3;
/// Without extensions.
const LENGTH_MIN: usize = 104;
/// QEMU's own limit.
const BACKING_NAME_BYTES_MAX: usize = 1023;

/// Incompatible features that QEMU sets by itself: metadata that is not flushed, or is damaged.
const MAY_BE_SET: u64 = 0b11;
const DATA_FILE: u64 = 1 << 2;

const END: u32 = 0;
const DATA_FILE_NAME: u32 = 0x4441_5441;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qcow2Header {
    /// What lies below, if the file says it.
    pub backing_file: Option<PathBuf>,
    /// Length of the disk that the guest sees.
    pub disk: ByteCount,
}

/// Why a header is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Qcow2Error {
    /// Too short, of another version, or with parts that lie elsewhere.
    #[error("its header is not one of qcow2: {0}")]
    Malformed(&'static str),
    /// Its clusters are in another file.
    #[error("its header names the external data file `{name}`")]
    DataFile {
        /// As the header has it; empty if it has no name.
        name: String,
    },
    /// Incompatible features that no overlay of forkd has.
    #[error("its header has the incompatible features {bits:#x}")]
    Features {
        /// Those that are refused.
        bits: u64,
    },
    /// It is encrypted.
    #[error("its header says that it is encrypted")]
    Encrypted,
    /// It names a file below that is not the base image.
    #[error("its header names the backing file `{}`", name.display())]
    BackingFile {
        /// As the header has it.
        name: PathBuf,
    },
}

impl Qcow2Header {
    /// How much of a file its header is looked for in. Headers that QEMU writes for an overlay
    /// have some 500 bytes, and the name of the backing file.
    pub const BYTES: usize = 4096;

    /// Reads the header at the beginning of a file, of which `head` has the first
    /// [`Self::BYTES`], or all.
    ///
    /// # Errors
    /// What forkd does not allow.
    pub fn decode(head: &[u8]) -> Result<Self, Qcow2Error> {
        let too_short = Qcow2Error::Malformed("it is too short");
        let fixed = head.first_chunk::<LENGTH_MIN>().ok_or(too_short)?;
        let u32_at = |at: usize| number(&fixed[at..at + 4]);
        let u64_at = |at: usize| number(&fixed[at..at + 8]);
        if fixed[..4] != MAGIC {
            return Err(Qcow2Error::Malformed("it does not begin as one"));
        }
        if u32_at(4) != u64::from(VERSION) {
            return Err(Qcow2Error::Malformed("it has another version than 3"));
        }
        let features = u64_at(72);
        let data_file = find_data_file(head, u32_at(100), u64_at(8))?;
        if data_file.is_some() || features & DATA_FILE != 0 {
            return Err(Qcow2Error::DataFile { name: data_file.unwrap_or_default() });
        }
        if features & !MAY_BE_SET != 0 {
            return Err(Qcow2Error::Features { bits: features & !MAY_BE_SET });
        }
        if u32_at(32) != 0 {
            return Err(Qcow2Error::Encrypted);
        }
        let backing_file = backing_file(head, u64_at(8), u32_at(16))?;
        Ok(Self { backing_file, disk: ByteCount::new(u64_at(24)) })
    }

    /// Takes the name of the backing file out of a file's beginning: the text, as far as it is
    /// there, and where the header says that it is.
    pub fn forget_backing(head: &mut [u8]) {
        let Some(fixed) = head.first_chunk::<20>() else { return };
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (at, length) = (small(number(&fixed[8..16])), small(number(&fixed[16..20])));
        let name = at..at.saturating_add(length.min(BACKING_NAME_BYTES_MAX));
        if let Some(text) = head.get_mut(name).filter(|_| at >= LENGTH_MIN) {
            text.fill(0);
        }
        // Where it is and how long: 0 stands for none.
        head[8..20].fill(0);
    }

    /// Accepts a header that names no backing file, or one that is `expected`.
    ///
    /// # Errors
    /// [`Qcow2Error::BackingFile`].
    pub fn require_backing(&self, expected: impl Fn(&Path) -> bool) -> Result<(), Qcow2Error> {
        match &self.backing_file {
            Some(name) if !expected(name) => Err(Qcow2Error::BackingFile { name: name.clone() }),
            _ => Ok(()),
        }
    }
}

/// The name of the external data file, if an extension of the header has one. Extensions end with
/// one of type 0, or where the name of the backing file begins.
fn find_data_file(
    head: &[u8],
    length: u64,
    backing_offset: u64,
) -> Result<Option<String>, Qcow2Error> {
    let outside = Qcow2Error::Malformed("its extensions do not end within 4 KiB");
    let end = match usize::try_from(backing_offset) {
        Ok(0) | Err(_) => head.len(),
        Ok(offset) => offset.min(head.len()),
    };
    let mut at = usize::try_from(length).unwrap_or(usize::MAX);
    if at < LENGTH_MIN || at > head.len() {
        return Err(Qcow2Error::Malformed("its length is impossible"));
    }
    while at < end {
        let fixed = head.get(at..at + 8).ok_or(outside.clone())?;
        let (kind, bytes) = (number(&fixed[..4]), number(&fixed[4..]));
        if kind == u64::from(END) {
            return Ok(None);
        }
        at += 8;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let data = head.get(at..at.saturating_add(bytes)).ok_or(outside.clone())?;
        if kind == u64::from(DATA_FILE_NAME) {
            return Ok(Some(String::from_utf8_lossy(data).into_owned()));
        }
        at += bytes.next_multiple_of(8);
    }
    if end < head.len() || head.len() < Qcow2Header::BYTES { Ok(None) } else { Err(outside) }
}

fn backing_file(head: &[u8], offset: u64, bytes: u64) -> Result<Option<PathBuf>, Qcow2Error> {
    use std::os::unix::ffi::OsStrExt as _;
    if offset == 0 || bytes == 0 {
        return Ok(None);
    }
    let outside = Qcow2Error::Malformed("the name of its backing file does not lie within it");
    let (Ok(from), Ok(bytes)) = (usize::try_from(offset), usize::try_from(bytes)) else {
        return Err(outside);
    };
    if bytes > BACKING_NAME_BYTES_MAX {
        return Err(outside);
    }
    let name = head.get(from..from.saturating_add(bytes)).ok_or(outside)?;
    Ok(Some(std::ffi::OsStr::from_bytes(name).into()))
}

/// A big-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The header of an overlay that names nothing.
#[cfg(test)]
pub(crate) fn plain_header() -> Vec<u8> {
    let mut head = vec![0; LENGTH_MIN + 16];
    head[..4].copy_from_slice(&MAGIC);
    head[7] = 3;
    head[103] = 112;
    head
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// What `qemu-img create` with `options` writes, and nothing it says is hidden.
    fn made(options: &[&str]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("o.qcow2");
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2"]).args(options).arg(&path).arg("64M");
        assert!(create.current_dir(directory.path()).status().unwrap().success());
        let mut head = fs::read(path).unwrap();
        head.truncate(Qcow2Header::BYTES);
        head
    }

    #[test]
    fn what_qemu_writes_for_an_overlay_is_accepted_and_all_else_that_it_can_write_is_not() {
        let decode = |options: &[&str]| Qcow2Header::decode(&made(options));
        let disk = ByteCount::from_mib(64);
        assert_eq!(decode(&[]), Ok(Qcow2Header { backing_file: None, disk }));
        let external = decode(&["-o", "data_file=elsewhere,data_file_raw=on"]);
        assert_eq!(external, Err(Qcow2Error::DataFile { name: "elsewhere".into() }));
        let compressed = decode(&["-o", "compression_type=zstd"]);
        assert_eq!(compressed, Err(Qcow2Error::Features { bits: 1 << 3 }));
        let extended = decode(&["-o", "extended_l2=on"]);
        assert_eq!(extended, Err(Qcow2Error::Features { bits: 1 << 4 }));
        let old = decode(&["-o", "compat=0.10"]);
        assert_eq!(old, Err(Qcow2Error::Malformed("it has another version than 3")));
        let secret = ["--object", "secret,id=s,data=x", "-o"];
        let encrypted = [&secret[..], &["encrypt.format=aes,encrypt.key-secret=s"]].concat();
        assert_eq!(decode(&encrypted), Err(Qcow2Error::Encrypted));
    }

    #[test]
    fn a_backing_file_is_accepted_only_if_it_is_expected() {
        let header = Qcow2Header::decode(&made(&["-u", "-b", "/disk/base", "-F", "raw"])).unwrap();
        assert_eq!(header.backing_file.as_deref(), Some(Path::new("/disk/base")));
        let base = Path::new("/disk/base");
        assert_eq!(header.require_backing(|name| name == base), Ok(()));
        let name = base.to_owned();
        assert_eq!(header.require_backing(|_| false), Err(Qcow2Error::BackingFile { name }));
        let plain = Qcow2Header::decode(&plain_header()).unwrap();
        assert_eq!(plain.require_backing(|_| false), Ok(()));
    }

    #[test]
    fn a_data_file_is_found_by_its_feature_and_by_its_name() {
        let mut by_feature = plain_header();
        by_feature[79] = 4;
        let nameless = Qcow2Error::DataFile { name: String::new() };
        assert_eq!(Qcow2Header::decode(&by_feature), Err(nameless));
        // Behind another extension, of an odd length.
        let mut by_name = plain_header();
        by_name.truncate(112);
        by_name.extend(b"\x68\x03\xf8\x57\0\0\0\x03abc\0\0\0\0\0");
        by_name.extend(b"DATA\0\0\0\x04/etc\0\0\0\0");
        let found = Qcow2Error::DataFile { name: "/etc".into() };
        assert_eq!(Qcow2Header::decode(&by_name), Err(found));
    }

    #[test]
    fn parts_that_lie_elsewhere_are_refused() {
        let with = |at: usize, bytes: &[u8]| {
            let mut head = plain_header();
            head.resize(Qcow2Header::BYTES, 0);
            head[at..at + bytes.len()].copy_from_slice(bytes);
            Qcow2Header::decode(&head)
        };
        let malformed = |result| matches!(result, Err(Qcow2Error::Malformed(_)));
        assert!(with(0, b"").is_ok());
        // The name of a backing file: beyond what is read, too long, an offset that overflows.
        assert!(malformed(with(8, b"\0\0\0\0\0\0\x0f\xff\0\0\0\x02")));
        assert!(malformed(with(8, b"\0\0\0\0\0\0\x01\0\0\0\x04\0")));
        assert!(malformed(with(8, b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x02")));
        // A header of no length, one that is longer than all, an extension that is.
        assert!(malformed(with(100, b"\0\0\0\0")));
        assert!(malformed(with(100, b"\0\0\x10\x01")));
        assert!(malformed(with(112, b"\0\0\0\x01\xff\xff\xff\xff")));
        assert!(malformed(with(112, b"\0\0\0\x01\0\0\x0f\x88")), "no end");
        assert!(malformed(Qcow2Header::decode(b"QFI\xfb")));
    }
}
