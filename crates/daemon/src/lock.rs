//! One daemon for each directory: a lock file that the kernel releases when its holder dies.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// A known process in words.
fn process(holder: &Option<u32>) -> String {
    holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// Why a directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon works there.
    #[error("a daemon{} already works in `{}`", process(holder), directory.display())]
    Held {
        /// The directory.
        directory: PathBuf,
        /// Its process id, as it wrote it down.
        holder: Option<u32>,
    },
    /// The lock file cannot be used.
    #[error("lock `{}`", path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

/// Holds a directory until dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes `directory`, which must exist.
    pub(crate) fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join("daemon.lock");
        let failed = |source: io::Error| LockError::File { path: path.clone(), source };
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let until = Instant::now() + ENDING_DEADLINE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let read = file.rewind().and_then(|()| file.read_to_string(&mut text)).ok();
                    let holder = read.and_then(|_| text.trim().parse().ok());
                    if !holder.is_some_and(is_ending) || Instant::now() > until {
                        return Err(LockError::Held { directory: directory.to_owned(), holder });
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        file.set_len(0).map_err(failed)?;
        file.rewind().map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// How long a daemon that was killed may take to let go.
const ENDING_DEADLINE: Duration = Duration::from_secs(5);

/// Whether a process has ended but for some of its threads, which still hold its files.
fn is_ending(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_once_and_free_again_when_its_holder_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let first = DirectoryLock::take(directory.path()).unwrap();
        let refused = DirectoryLock::take(directory.path()).unwrap_err();
        let LockError::Held { holder, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*holder, Some(std::process::id()));
        assert!(refused.to_string().contains(&directory.path().display().to_string()));
        drop(first);
        DirectoryLock::take(directory.path()).unwrap();
    }
}
