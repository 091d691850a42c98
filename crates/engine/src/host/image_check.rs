//! Whether an image's files are still what was built.
//!
//! `image.json` has the SHA-256 of each file. Reading a root disk takes a second, so a file is read
//! once: what was found is kept for as long as its inode, length and times are the same, over
//! changes of the daemon too.
//!
//! Does not do: protect from who may write `image.json` itself; tell of a file that is missing,
//! which whoever needs it does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What was found out in this process, which may have several engines, and by earlier ones.
static FOUND: Mutex<BTreeMap<PathBuf, Found>> = Mutex::new(BTreeMap::new());

/// How much is read at once.
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    file: Identity,
    sha256: String,
}

/// Whoever changes a file changes one of these: no program can set the time of the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Compares the file at `path` with its checksum. `record` is where findings are kept.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn check(path: &Path, sha256: &str, record: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("`{}` cannot be read: {error}", path.display());
    let file = match Identity::of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(unreadable)?,
    };
    let found = match known(path, file, record) {
        Some(found) => found,
        None => {
            let begun = std::time::Instant::now();
            let found = Found { file, sha256: sha256_of(path).map_err(unreadable)? };
            tracing::info!(path = %path.display(), took = ?begun.elapsed(), "read to check it");
            // Not if it was written to meanwhile.
            if Identity::of(path).map_err(unreadable)? == file {
                keep(path, found.clone(), record);
            }
            found
        }
    };
    if found.sha256 == sha256 {
        return Ok(());
    }
    Err(format!(
        "`{}` is not the file that was built: its SHA-256 is {} instead of {sha256}; put that \
         file back, or build the image again",
        path.display(),
        found.sha256
    ))
}

fn known(path: &Path, file: Identity, record: &Path) -> Option<Found> {
    let mut known = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |found: &&Found| found.file == file;
    if let Some(found) = known.get(path).filter(fits) {
        return Some(found.clone());
    }
    let found = read(record).remove(path).filter(|found| found.file == file)?;
    known.insert(path.to_owned(), found.clone());
    Some(found)
}

/// What is kept is an advantage only: who cannot write it reads the file again.
fn keep(path: &Path, found: Found, record: &Path) {
    let mut known = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    known.insert(path.to_owned(), found.clone());
    let mut kept = read(record);
    kept.insert(path.to_owned(), found);
    let temporary = record.with_extension("new");
    let written = serde_json::to_vec(&kept)
        .map_err(io::Error::other)
        .and_then(|bytes| fs::write(&temporary, bytes))
        .and_then(|()| fs::rename(&temporary, record));
    if let Err(error) = written {
        tracing::debug!(%error, "the check of an image is not kept");
    }
}

fn read(record: &Path) -> BTreeMap<PathBuf, Found> {
    let kept = fs::read(record).ok();
    kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Holes are not read: a root disk consists of them for the most part.
pub(super) fn sha256_of(path: &Path) -> io::Result<String> {
    use rustix::fs::SeekFrom;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let (zeros, mut buffer) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut hash, mut at) = (Sha256::new(), 0);
    while at < length {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole follows.
            Err(rustix::io::Errno::NXIO) => length,
            Err(errno) => return Err(errno.into()),
        };
        let mut hole = data - at;
        while hole > 0 {
            let count = usize::try_from(hole).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            hash.update(&zeros[..count]);
            hole -= count as u64;
        }
        at = data;
        if at == length {
            break;
        }
        let end = rustix::fs::seek(&file, SeekFrom::Hole(at))?;
        rustix::fs::seek(&file, SeekFrom::Start(at))?;
        while at < end {
            let rest = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            file.read_exact(&mut buffer[..rest])?;
            hash.update(&buffer[..rest]);
            at += rest as u64;
        }
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn the_checksum_is_that_of_all_bytes_holes_included() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        for (length, writes) in [
            (0, &[][..]),
            (5_000_000, &[(0, "a"), (3_000_000, "b")]),
            (3 << 20, &[(1 << 20, "c")]),
            (70_000, &[(69_995, "at end")]),
        ] {
            let file = File::create(&path).unwrap();
            file.set_len(length).unwrap();
            for (at, text) in writes {
                file.write_all_at(text.as_bytes(), *at).unwrap();
            }
            let whole = hex::encode(Sha256::digest(fs::read(&path).unwrap()));
            assert_eq!(sha256_of(&path).unwrap(), whole, "{length}");
        }
    }

    #[test]
    fn a_file_is_read_once_and_again_when_it_was_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, record) = (directory.path().join("kernel"), directory.path().join("record"));
        fs::write(&path, "kernel").unwrap();
        let sha256 = hex::encode(Sha256::digest("kernel"));
        check(&path, &sha256, &record).unwrap();
        // What is kept is believed, here a wrong one: the file is not read again.
        let mut kept = read(&record);
        kept.get_mut(&path).unwrap().sha256 = "other".to_owned();
        fs::write(&record, serde_json::to_vec(&kept).unwrap()).unwrap();
        check(&path, &sha256, &record).unwrap();
        FOUND.lock().unwrap().remove(&path);
        let error = check(&path, &sha256, &record).unwrap_err();
        assert!(error.contains("instead of"), "{error}");
        // Of the same length, and with its former time of writing.
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "Kernel").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
        let error = check(&path, &sha256, &record).unwrap_err();
        let found = hex::encode(Sha256::digest("Kernel"));
        assert!(error.contains(&found) && error.contains("kernel` is not"), "{error}");
        fs::write(&path, "kernel").unwrap();
        check(&path, &sha256, &record).unwrap();
        fs::remove_file(&path).unwrap();
        check(&path, &sha256, &record).unwrap();
    }
}
