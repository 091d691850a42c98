//! A file that keeps the end of a stream.
//!
//! A header counts the bytes that were ever written; byte `n` of the stream lies `n` modulo the
//! capacity behind it. The capacity is one chunk more than what is promised, so that a chunk can be
//! written while somebody reads: what the count covers is whole, for a later daemon too.
//!
//! Guarantees: the file never holds more than that; a file with foreign content is begun anew and
//! never read beyond its capacity.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Most bytes that are written at once.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

const MAGIC: [u8; 8] = *b"fkdring1";
const HEADER_LENGTH: usize = 16;
const HEADER_BYTES: u64 = HEADER_LENGTH as u64;

/// What is kept of a stream: its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptOutput {
    /// The last bytes.
    pub bytes: Vec<u8>,
    /// How many bytes were before them.
    pub missing: u64,
}

/// The file, for its one writer.
#[derive(Debug)]
pub(super) struct Ring {
    file: File,
    /// Bytes written since the stream began.
    written: u64,
    capacity: u64,
}

impl Ring {
    /// Goes on with the file at `path`, or creates it. It keeps `kept` bytes.
    pub(super) fn open(path: &Path, kept: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let file = options.custom_flags(NOT_FOLLOWED).open(path)?;
        let written = count(&file)?.unwrap_or(0);
        let ring = Self { file, written, capacity: capacity(kept) };
        if written == 0 {
            ring.file.set_len(0)?;
        }
        Ok(ring)
    }

    /// Adds to the stream: [`CHUNK_BYTES`] at most.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len() <= CHUNK_BYTES);
        let position = self.written % self.capacity;
        let (first, wrapped) = bytes.split_at(bytes.len().min(usize_of(self.capacity - position)));
        self.file.write_all_at(first, HEADER_BYTES + position)?;
        self.file.write_all_at(wrapped, HEADER_BYTES)?;
        self.written += bytes.len() as u64;
        let mut header = [0; HEADER_LENGTH];
        header[..8].copy_from_slice(&MAGIC);
        header[8..].copy_from_slice(&self.written.to_le_bytes());
        self.file.write_all_at(&header, 0)
    }
}

/// A link in the place of the file is an error.
const NOT_FOLLOWED: i32 = OFlags::NOFOLLOW.bits().cast_signed();

const fn capacity(kept: u64) -> u64 {
    kept + CHUNK_BYTES as u64
}

/// Reads what the file at `path` keeps of its stream. Without a file there was no stream.
pub(super) fn read(path: &Path, kept: u64) -> io::Result<KeptOutput> {
    let file = match OpenOptions::new().read(true).custom_flags(NOT_FOLLOWED).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KeptOutput::default()),
        Err(error) => return Err(error),
    };
    let Some(end) = count(&file)? else { return Ok(KeptOutput::default()) };
    let mut data = vec![0; usize_of(capacity(kept).min(end))];
    let filled = read_at_most(&file, &mut data)?;
    data.truncate(filled);
    // Written meanwhile: the oldest bytes may be gone.
    let start = count(&file)?.unwrap_or(end).max(end).saturating_sub(kept).min(end);
    let positions = (start..end).map(|byte| usize_of(byte % capacity(kept)));
    let bytes = positions.map_while(|position| data.get(position).copied()).collect();
    Ok(KeptOutput { bytes, missing: start })
}

/// The number of bytes ever written, if the file is a ring.
fn count(file: &File) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_LENGTH];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (magic, count) = header.split_at(MAGIC.len());
    let count = count.try_into().map_or(0, u64::from_le_bytes);
    // No stream has as many: whoever wrote that, no sum here overflows.
    Ok((magic == MAGIC && count <= i64::MAX.cast_unsigned()).then_some(count))
}

fn read_at_most(file: &File, data: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], HEADER_BYTES + filled as u64)? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    Ok(filled)
}

/// For what is bounded by the size of a ring.
fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEPT: u64 = 1 << 20;

    /// Byte `n` of a stream whose bytes tell where they stand.
    fn byte(n: u64) -> u8 {
        (n % 251) as u8
    }

    fn stream(range: std::ops::Range<u64>) -> Vec<u8> {
        range.map(byte).collect()
    }

    fn write(ring: &mut Ring, range: std::ops::Range<u64>, step: usize) {
        for chunk in stream(range).chunks(step) {
            ring.append(chunk).unwrap();
        }
    }

    #[test]
    fn a_short_stream_is_kept_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut ring = Ring::open(&path, KEPT).unwrap();
        write(&mut ring, 0..KEPT, 1000);
        let kept = read(&path, KEPT).unwrap();
        assert!(kept.bytes == stream(0..KEPT) && kept.missing == 0);
    }

    #[test]
    fn of_a_long_stream_the_end_is_kept_and_what_is_missing_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut ring = Ring::open(&path, KEPT).unwrap();
        let end = 7 * KEPT + 12_345;
        for step in [CHUNK_BYTES, 999] {
            write(&mut ring, 0..end, step);
        }
        // Twice the same stream: it goes on where the first ended.
        let kept = read(&path, KEPT).unwrap();
        assert_eq!(kept.missing, 2 * end - KEPT);
        assert!(kept.bytes == stream(end - KEPT..end));
        let length = fs::metadata(&path).unwrap().len();
        assert!(length <= KEPT + 2 * CHUNK_BYTES as u64, "{length}");
    }

    #[test]
    fn a_later_writer_goes_on_where_the_earlier_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        write(&mut Ring::open(&path, KEPT).unwrap(), 0..KEPT, CHUNK_BYTES);
        write(&mut Ring::open(&path, KEPT).unwrap(), KEPT..KEPT + 10, 10);
        let kept = read(&path, KEPT).unwrap();
        assert!(kept.bytes == stream(10..KEPT + 10) && kept.missing == 10);
    }

    #[test]
    fn a_chunk_that_was_not_counted_before_a_crash_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let mut ring = Ring::open(&path, KEPT).unwrap();
        let end = 3 * KEPT;
        write(&mut ring, 0..end, CHUNK_BYTES);
        let header = fs::read(&path).unwrap()[..HEADER_LENGTH].to_vec();
        ring.append(&[0xFF; CHUNK_BYTES]).unwrap();
        ring.file.write_all_at(&header, 0).unwrap();
        assert!(read(&path, KEPT).unwrap().bytes == stream(end - KEPT..end));
    }

    #[test]
    fn a_file_with_foreign_content_is_begun_anew_and_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert_eq!(read(&path, KEPT).unwrap(), KeptOutput::default());
        Ring::open(&path, KEPT).unwrap().append(b"new").unwrap();
        assert_eq!(read(&path, KEPT).unwrap().bytes, b"new");
        // A count that is a lie reads no further than the file.
        let mut lie = MAGIC.to_vec();
        lie.extend(i64::MAX.to_le_bytes());
        fs::write(&path, lie).unwrap();
        assert!(read(&path, KEPT).unwrap().bytes.is_empty());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Ring::open(&link, KEPT).is_err() && read(&link, KEPT).is_err());
    }
}
