//! Length and checksum of a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use forkd_types::ByteCount;
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::disk::{CHUNK_BYTES, Rest};

/// What a file held when it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChecksum {
    /// Its length.
    pub bytes: ByteCount,
    /// Checksum of its content.
    pub crc32: u32,
}

impl FileChecksum {
    pub(crate) fn of(mut file: impl Read) -> io::Result<Self> {
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let (mut bytes, mut rest) = (0, Rest::new());
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&buffer[..count]);
                    bytes += count as u64;
                    rest.after(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { bytes: ByteCount::new(bytes), crc32: hasher.finalize() })
    }

    pub(crate) fn differs(&self, found: &Self) -> Option<String> {
        if found.bytes != self.bytes {
            let (found, wanted) = (found.bytes.get(), self.bytes.get());
            return Some(format!("damaged: it has {found} bytes instead of {wanted}"));
        }
        let same = found.crc32 == self.crc32;
        (!same).then(|| "damaged: it does not match its checksum".to_owned())
    }
}

/// What is wrong with the file at `path`, if anything.
pub(crate) fn problem(path: &Path, checksum: &FileChecksum) -> Result<Option<String>, StoreError> {
    match File::open(path).and_then(FileChecksum::of) {
        Ok(found) => Ok(checksum.differs(&found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some("missing".to_owned())),
        Err(source) => Err(StoreError::file("read", path, source)),
    }
}
