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
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let read = file.rewind().and_then(|()| file.read_to_string(&mut text)).ok();
                    let holder = read.and_then(|_| text.trim().parse().ok());
                    let ending = holder.is_some_and(is_ending);
                    let patience = if ending { ENDING_DEADLINE } else { DYING_DEADLINE };
                    if begun.elapsed() > patience {
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

/// Between the moment when a signal is taken and the one when it shows, a daemon that was killed
/// looks like any other.
const DYING_DEADLINE: Duration = Duration::from_millis(200);

/// How long a daemon that was killed may take to let go.
const ENDING_DEADLINE: Duration = Duration::from_secs(5);

/// Whether a process has been killed, or has ended but for some of its threads, which still hold
/// its files.
fn is_ending(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ended =
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    ended || has_pending_kill(&status)
}

/// Whether `/proc/PID/status` shows SIGKILL among the signals that wait (`proc(5)`): a process that
/// was told to end a moment ago.
fn has_pending_kill(status: &str) -> bool {
    const SIGKILL_BIT: u64 = 1 << 8;
    let sets = ["SigPnd:", "ShdPnd:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    });
    sets.iter().any(|set| set & SIGKILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_that_waits_is_seen_and_other_signals_are_not() {
        let status =
            |own: &str, shared: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        assert!(has_pending_kill(&status("0000000000000100", "0000000000000000")));
        assert!(has_pending_kill(&status("0000000000000000", "0000000000004100")));
        assert!(!has_pending_kill(&status("0000000000004000", "0000000000000200")));
        assert!(!has_pending_kill(""));
    }

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
