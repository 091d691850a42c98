//! A reader that computes the digest of what is read through it.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

use crate::Digest;

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
        Ok(Digest::from_sha256(self.hash.finalize().into()))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
