//! Failpoints around what the store does to files and rows: the moments at which a daemon may die,
//! and at which a file system may refuse. A test installs a watcher, which notes what the disk has
//! been told, returns an error as the file system would, or kills the process.
//!
//! Without the feature `failpoints`, which no program that is shipped has, there is nothing to watch
//! with and nothing is done.

use std::path::Path;

/// What is about to happen, or has just happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failpoint<'a> {
    /// A file is about to be written: the last moment at which there can be no space.
    Writing(&'a Path),
    /// All of a file is written, if there is space; the disk may not have it.
    Written(&'a Path),
    /// What was written to a file before is on the disk.
    Flushed(&'a Path),
    /// A file is about to take another's name, or to be given its own.
    Renaming {
        /// Its name until now.
        from: &'a Path,
        /// Its name from now on.
        to: &'a Path,
    },
    /// It has its name; the disk may not have it.
    Renamed {
        /// Its former name.
        from: &'a Path,
        /// Its name.
        to: &'a Path,
    },
    /// The names in a directory are on the disk.
    DirectoryFlushed(&'a Path),
    /// A file is about to be removed.
    Removing(&'a Path),
    /// It has no name any more; the disk may still have it.
    Removed(&'a Path),
    /// Rows are about to be changed.
    RowChanging(&'static str),
    /// Rows have been changed; the disk may not have the change.
    RowChanged(&'static str),
    /// All changes of rows so far are about to be written to the disk.
    RegistryFlushing,
    /// All changes of rows so far are on the disk.
    RegistryFlushed,
}

#[cfg(feature = "failpoints")]
mod watched {
    use std::io;
    use std::sync::OnceLock;

    use super::Failpoint;

    type Watcher = Box<dyn Fn(Failpoint<'_>) -> io::Result<()> + Send + Sync>;

    static WATCHER: OnceLock<Watcher> = OnceLock::new();

    /// `watcher` sees every failpoint that this process reaches. Its error is taken for the file
    /// system's where one is possible. Only the first one counts.
    pub fn watch_failpoints(
        watcher: impl Fn(Failpoint<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) {
        WATCHER.set(Box::new(watcher)).ok();
    }

    pub(crate) fn reach(failpoint: Failpoint<'_>) -> io::Result<()> {
        WATCHER.get().map_or(Ok(()), |watcher| watcher(failpoint))
    }
}

#[cfg(feature = "failpoints")]
pub(crate) use watched::reach;
#[cfg(feature = "failpoints")]
pub use watched::watch_failpoints;

#[cfg(not(feature = "failpoints"))]
#[expect(clippy::unnecessary_wraps, reason = "with the feature there are errors")]
pub(crate) fn reach(_: Failpoint<'_>) -> std::io::Result<()> {
    Ok(())
}
