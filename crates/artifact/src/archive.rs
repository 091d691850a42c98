//! The file: a tar archive of which every byte is known once the names and lengths of its entries
//! are. A reader therefore compares headers as a whole and needs no parser of the format.

use std::io::{self, Read, Write};

use crate::{ArtifactError, Digest};

/// Where parts lie.
const BLOBS: &str = "blobs/sha256/";
const BLOCK: usize = 512;
/// Two empty blocks end the archive.
const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
const NAME_BYTES: usize = 100;
const SIZE_AT: usize = 124;
const SUM_AT: usize = 148;
/// The largest length that the header can say.
const SIZE_MAX: u64 = (1 << 33) - 1;

/// The header of a plain file.
fn header(name: &str, size: u64) -> [u8; BLOCK] {
    assert!(name.len() < NAME_BYTES && size <= SIZE_MAX, "{name}: {size}");
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    // Nobody's, and of no time: the same content is the same file.
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(SIZE_AT, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(156, b"0");
    put(257, b"ustar\x0000");
    // The sum of all bytes, its own taken as blanks.
    let blanks = 8 * u32::from(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum::<u32>() + blanks;
    header[SUM_AT..SUM_AT + 8].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// The name of the entry of a part.
pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}

/// Bytes that fill the last block of an entry.
fn padding(size: u64) -> usize {
    let rest = usize::try_from(size % BLOCK as u64).unwrap_or_default();
    (BLOCK - rest) % BLOCK
}

/// Bytes that an entry takes in the file.
pub(crate) fn entry_bytes(size: u64) -> u64 {
    (BLOCK + padding(size)) as u64 + size
}

/// Bytes after the last entry.
pub(crate) const END_BYTES: u64 = END.len() as u64;

/// Writes one entry.
pub(crate) fn write(to: &mut dyn Write, name: &str, content: &[u8]) -> io::Result<()> {
    let size = content.len() as u64;
    to.write_all(&header(name, size))?;
    to.write_all(content)?;
    to.write_all(&END[..padding(size)])
}

/// Ends the file.
pub(crate) fn finish(to: &mut dyn Write) -> io::Result<()> {
    to.write_all(&END)?;
    to.flush()
}

/// The entries of a file that is read from beginning to end.
pub(crate) struct Entries<R>(R);

impl<R: Read> Entries<R> {
    pub(crate) const fn new(from: R) -> Self {
        Self(from)
    }

    fn exactly(&mut self, buffer: &mut [u8], within: &str) -> Result<(), ArtifactError> {
        self.0.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArtifactError::Cut { within: within.to_owned() },
            _ => ArtifactError::reading(error),
        })
    }

    /// The next entry, which is called `name` and has between 1 and `max` bytes.
    pub(crate) fn up_to(&mut self, name: &str, max: u64) -> Result<Vec<u8>, ArtifactError> {
        let found = self.block(name)?;
        let size = size_in(&found).filter(|size| (1..=max).contains(size));
        match size {
            Some(size) if found == header(name, size) => self.content(name, size),
            _ => Err(unexpected(&found, format!("`{name}` of at most {max} bytes"))),
        }
    }

    /// The next entry, which is called `name` and has `size` bytes.
    pub(crate) fn sized(&mut self, name: &str, size: u64) -> Result<Vec<u8>, ArtifactError> {
        let found = self.block(name)?;
        if found != header(name, size) {
            return Err(unexpected(&found, format!("`{name}` of {size} bytes")));
        }
        self.content(name, size)
    }

    /// The next blob of 1 to `max` bytes, and the digest that it goes by.
    pub(crate) fn named_blob(&mut self, max: u64) -> Result<(Digest, Vec<u8>), ArtifactError> {
        let found = self.block("a blob")?;
        let name = found[..NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
        let digits = name.strip_prefix(BLOBS.as_bytes()).and_then(|hex| str::from_utf8(hex).ok());
        let digest = digits.and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
        let size = size_in(&found).filter(|size| (1..=max).contains(size));
        match digest.zip(size) {
            Some((digest, size)) if found == header(&blob_name(&digest), size) => {
                Ok((digest, self.content(&blob_name(&digest), size)?))
            }
            _ => Err(unexpected(&found, format!("a blob of at most {max} bytes"))),
        }
    }

    fn block(&mut self, name: &str) -> Result<[u8; BLOCK], ArtifactError> {
        let mut block = [0; BLOCK];
        self.exactly(&mut block, &format!("the header of `{name}`"))?;
        Ok(block)
    }

    fn content(&mut self, name: &str, size: u64) -> Result<Vec<u8>, ArtifactError> {
        let within = format!("`{name}`");
        let length = usize::try_from(size).map_err(|_| ArtifactError::Stopped)?;
        let mut content = vec![0; length];
        self.exactly(&mut content, &within)?;
        let mut rest = [0; BLOCK];
        let rest = &mut rest[..padding(size)];
        self.exactly(rest, &within)?;
        if rest.iter().any(|byte| *byte != 0) {
            let (found, wanted) = ("bytes that belong to nothing".to_owned(), "padding".to_owned());
            return Err(ArtifactError::Entry { found, wanted });
        }
        Ok(content)
    }

    /// Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<(), ArtifactError> {
        let mut found = [1; END.len()];
        self.exactly(&mut found, "the end of the archive")?;
        let wanted = || "the end of the archive".to_owned();
        if found != END {
            let found = "another entry".to_owned();
            return Err(ArtifactError::Entry { found, wanted: wanted() });
        }
        match self.0.read(&mut [0]).map_err(ArtifactError::reading)? {
            0 => Ok(()),
            _ => {
                let found = "more bytes".to_owned();
                Err(ArtifactError::Entry { found, wanted: "the end of the file".to_owned() })
            }
        }
    }
}

fn size_in(block: &[u8; BLOCK]) -> Option<u64> {
    let digits = std::str::from_utf8(&block[SIZE_AT..SIZE_AT + 11]).ok()?;
    u64::from_str_radix(digits, 8).ok()
}

/// Says what is there instead, as far as it can be shown.
fn unexpected(found: &[u8; BLOCK], wanted: String) -> ArtifactError {
    let name = found[..NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
    let printable = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    let found = match (printable, std::str::from_utf8(name), size_in(found)) {
        (true, Ok(name), Some(size)) => format!("`{name}` of {size} bytes, or a changed header"),
        _ => "bytes that are no entry of a tar archive".to_owned(),
    };
    ArtifactError::Entry { found, wanted }
}
