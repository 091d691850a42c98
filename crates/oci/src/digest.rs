//! Digests: the names of blobs, and readers that compute them on the way.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

const PREFIX: &str = "sha256:";

/// A SHA-256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(hex::encode(Sha256::digest(bytes)))
    }

    pub(crate) fn from_hash(hash: Sha256) -> Self {
        Self(hex::encode(hash.finalize()))
    }

    /// The 64 characters without `sha256:`. They are the name of a file.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

/// The given text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest: it must be `sha256:` and 64 hexadecimal characters")]
pub struct BadDigest(String);

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let is_hex = |hex: &&str| {
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let bad = || BadDigest(text.chars().take(80).collect());
        text.strip_prefix(PREFIX).filter(is_hex).map(|hex| Self(hex.to_owned())).ok_or_else(bad)
    }
}

/// Hashes and counts what is read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    /// The digest of everything, the rest included, of which at most `max` bytes are read.
    pub(crate) fn finish(mut self, max: u64) -> io::Result<Digest> {
        let rest = io::copy(&mut (&mut self).take(max), &mut io::sink())?;
        if rest == max && max > 0 {
            return Err(io::Error::other("too much follows the archive"));
        }
        Ok(Digest::from_hash(self.hash))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_its_text_and_nothing_else_is_one() {
        let digest = Digest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        let upper = text.to_uppercase();
        for bad in
            ["", "sha256:", &text[..70], &upper, "sha512:00", "sha256:../../../../etc/passwd"]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
