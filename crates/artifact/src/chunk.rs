//! A part of an artifact: up to 4 MiB, compressed with zstd.
//!
//! Guest memory is cut at multiples of 4 MiB of its addresses, so two layers that hold the same
//! pages there share a part. Everything else is cut at multiples of 4 MiB of its length.

use std::io;

use crate::{ArtifactError, Digest};

/// Bytes of one part before it is compressed. Part of the format.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of one part. Content that does not compress grows a little.
pub(crate) const COMPRESSED_BYTES_MAX: u64 = CHUNK_BYTES + (64 << 10);
/// Fast, and a few per cent larger than the best.
const LEVEL: i32 = 3;

/// Compresses parts: the same content becomes the same bytes.
pub(crate) struct Compressor(zstd::bulk::Compressor<'static>);

impl Compressor {
    pub(crate) fn new() -> io::Result<Self> {
        zstd::bulk::Compressor::new(LEVEL).map(Self)
    }

    pub(crate) fn compress(&mut self, content: &[u8]) -> io::Result<Vec<u8>> {
        self.0.compress(content)
    }
}

/// The opposite, for parts whose digest was compared.
pub(crate) struct Decompressor(zstd::bulk::Decompressor<'static>);

impl Decompressor {
    pub(crate) fn new() -> Result<Self, ArtifactError> {
        zstd::bulk::Decompressor::new().map(Self).map_err(ArtifactError::reading)
    }

    /// The content of `part`, which must have exactly `length` bytes; no more are ever written.
    pub(crate) fn decompress(
        &mut self,
        digest: Digest,
        part: &[u8],
        length: usize,
    ) -> Result<Vec<u8>, ArtifactError> {
        let content = self.0.decompress(part, length).map_err(|_| ArtifactError::Part {
            part: digest,
            how: "is not compressed as it should be, or holds more than it may",
        })?;
        if content.len() == length {
            return Ok(content);
        }
        Err(ArtifactError::Part { part: digest, how: "holds less than the manifest says" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_holds_more_or_less_than_it_should_is_refused() {
        let mut compressor = Compressor::new().unwrap();
        let part = compressor.compress(&[7; 10_000]).unwrap();
        assert!(part.len() < 100, "a small part can hold much");
        let digest = Digest::of(&part);
        let mut decompressor = Decompressor::new().unwrap();
        assert_eq!(decompressor.decompress(digest, &part, 10_000).unwrap(), [7; 10_000]);
        for length in [0, 9_999, 10_001] {
            let error = decompressor.decompress(digest, &part, length).unwrap_err();
            assert!(error.to_string().contains(&digest.to_string()), "{error}");
        }
        assert!(decompressor.decompress(digest, b"rubbish", 7).is_err());
    }
}
