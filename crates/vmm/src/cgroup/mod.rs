//! Memory limits of VMMs, by cgroups of either version.
//!
//! ```text
//! <base>/forkd-<daemon>-<sandbox>    one VMM, which enters before its program begins
//! ```
//!
//! Charged to a group is what its process is the first to touch: its private pages, among them
//! those that the guest has written; page tables; and pages of files on tmpfs that nobody had in
//! memory before. What the daemon copies, writes or maps is charged to the daemon.
//!
//! Guarantees: a VMM is in its group before it has memory of its own; nothing of it is swapped out
//! where the kernel accounts swap; a group goes with its process, unless the process is released.
//!
//! Does not do: choose limits, share one group between processes.

mod place;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_types::ByteCount;

use crate::VmmError;

/// A process that has been waited for leaves its group a moment later.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(1);
const REMOVAL_POLL: Duration = Duration::from_millis(2);

/// The kernel charges up to 64 pages at once: a group with less to spare has met its limit.
const CHARGED_AT_ONCE: u64 = 64 * forkd_types::PAGE_BYTES;

/// How much memory a VMM may have, and the cgroup that sees to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// A whole number of pages.
    pub bytes: ByteCount,
    /// The group's directory; made with the VMM and removed with it.
    pub cgroup: PathBuf,
}

/// Memory cannot be limited on this host, or not by this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("memory cannot be limited here: {reason}")]
pub struct CgroupsUnavailable {
    reason: String,
}

impl CgroupsUnavailable {
    /// For this reason.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// Where the groups of one daemon are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryCgroups {
    base: PathBuf,
    prefix: String,
}

impl MemoryCgroups {
    /// Finds a group below which this process may make others with a memory limit. `daemon` tells
    /// its groups from those of others. With version 2 this process may move into a group below the
    /// one that it was started in, because one with processes cannot limit those below it.
    ///
    /// # Errors
    /// Says what was looked for and what stands in the way.
    pub fn find(daemon: &str) -> Result<Self, CgroupsUnavailable> {
        place::find().map(|base| Self::at(base, daemon)).map_err(CgroupsUnavailable::because)
    }

    /// Those that a daemon has made below `base`.
    #[must_use]
    pub fn at(base: PathBuf, daemon: &str) -> Self {
        Self { base, prefix: format!("forkd-{daemon}-") }
    }

    /// The group that all others are made in.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The group of the VM called `name`.
    #[must_use]
    pub fn cgroup_of(&self, name: &str) -> PathBuf {
        self.base.join(format!("{}{name}", self.prefix))
    }

    /// Removes the groups of this daemon but those to `keep`.
    pub fn sweep(&self, keep: &[PathBuf]) {
        for entry in fs::read_dir(&self.base).into_iter().flatten().flatten() {
            let is_ours = entry.file_name().to_string_lossy().starts_with(&self.prefix);
            if is_ours && entry.path().is_dir() && !keep.contains(&entry.path()) {
                tracing::info!(group = %entry.path().display(), "removing a group left behind");
                remove(&entry.path());
            }
        }
    }
}

/// Whether a process in this group was ended because the group's limit was reached. A group that is
/// gone tells nothing.
#[must_use]
pub fn limit_was_reached(group: &Path) -> bool {
    let read = |file| fs::read_to_string(group.join(file)).unwrap_or_default();
    let killed = |text: &str| field(text, "oom_kill").is_some_and(|count| count > 0);
    match Version::of(group) {
        // The host may have been short of memory itself: then the group's limit was not met.
        Version::Two => {
            let events = read("memory.events");
            killed(&events) && field(&events, "max").is_some_and(|count| count > 0)
        }
        Version::One => {
            let bytes = |file| read(file).trim().parse::<u64>().ok();
            let (most, limit) =
                (bytes("memory.max_usage_in_bytes"), bytes("memory.limit_in_bytes"));
            // The counts of failures stay at 0 on newer kernels.
            let met = most.zip(limit).is_some_and(|(most, limit)| most + CHARGED_AT_ONCE >= limit);
            killed(&read("memory.oom_control")) && met
        }
    }
}

/// The number after a word at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Which cgroups have the memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn of(group: &Path) -> Self {
        if group.join("memory.limit_in_bytes").exists() { Self::One } else { Self::Two }
    }
}

/// A cgroup with a limit, for one process. Dropping it removes it, unless it is released.
#[derive(Debug)]
pub struct MemoryCgroup {
    limit: MemoryLimit,
    released: bool,
}

impl MemoryCgroup {
    /// Makes the group, empty.
    ///
    /// # Errors
    /// Names the file that the system did not permit to be made or written.
    pub fn make(limit: &MemoryLimit) -> Result<Self, VmmError> {
        let failed =
            |source| VmmError::File { what: "make cgroup", path: limit.cgroup.clone(), source };
        let made = match fs::create_dir(&limit.cgroup) {
            // Of a process that has ended.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                remove(&limit.cgroup);
                fs::create_dir(&limit.cgroup)
            }
            other => other,
        };
        made.map_err(failed)?;
        let group = Self { limit: limit.clone(), released: false };
        group.set_limit()?;
        Ok(group)
    }

    /// The group of a process that another daemon has started.
    pub(crate) fn adopt(limit: &MemoryLimit) -> Self {
        Self { limit: limit.clone(), released: false }
    }

    fn set_limit(&self) -> Result<(), VmmError> {
        let bytes = self.limit.bytes.get().to_string();
        match Version::of(&self.limit.cgroup) {
            Version::One => {
                self.write("memory.limit_in_bytes", &bytes)?;
                // Memory and swap together: what is swapped out is not gone.
                self.write_if_there("memory.memsw.limit_in_bytes", &bytes)
            }
            Version::Two => {
                self.write("memory.max", &bytes)?;
                self.write_if_there("memory.swap.max", "0")
            }
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), VmmError> {
        let path = self.limit.cgroup.join(file);
        // Not created: a file that is not there is a controller that is not there.
        let open = OpenOptions::new().write(true).open(&path);
        let written = open.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
        written.map_err(|source| VmmError::File { what: "write", path, source })
    }

    /// For files that depend on how the kernel was built.
    fn write_if_there(&self, file: &str, text: &str) -> Result<(), VmmError> {
        if self.limit.cgroup.join(file).exists() { self.write(file, text) } else { Ok(()) }
    }

    /// What a process writes to in order to enter.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn entrance(&self) -> Result<File, VmmError> {
        let path = self.limit.cgroup.join("cgroup.procs");
        let open = OpenOptions::new().write(true).open(&path);
        open.map_err(|source| VmmError::File { what: "open", path, source })
    }

    /// The limit, if the kernel has ended the process because of it.
    #[must_use]
    pub fn limit_reached(&self) -> Option<ByteCount> {
        limit_was_reached(&self.limit.cgroup).then_some(self.limit.bytes)
    }

    /// Leaves the group alone: its process lives on.
    pub fn release(&mut self) {
        self.released = true;
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if !self.released {
            remove(&self.limit.cgroup);
        }
    }
}

/// Removes a group, which need not be there.
fn remove(group: &Path) {
    let begun = Instant::now();
    loop {
        match fs::remove_dir(group) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && begun.elapsed() < REMOVAL_DEADLINE =>
            {
                std::thread::sleep(REMOVAL_POLL);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(group = %group.display(), %error, "cannot remove a cgroup");
                return;
            }
            _ => return,
        }
    }
}

/// A limit that a probe sets and takes away again.
const PROBE_LIMIT: ByteCount = ByteCount::from_mib(16);

/// Tries out what a limit needs: makes a group, limits it, starts a program in it, removes it.
///
/// # Errors
/// Says which step was refused.
pub fn try_memory_limit(groups: &MemoryCgroups) -> Result<(), VmmError> {
    let name = format!("probe-{}", std::process::id());
    let limit = MemoryLimit { bytes: PROBE_LIMIT, cgroup: groups.cgroup_of(&name) };
    let group = MemoryCgroup::make(&limit)?;
    let mut command = std::process::Command::new("true");
    forkd_sys::confine::enter_cgroup(&mut command, group.entrance()?);
    let status = command.status();
    status.map_err(|source| VmmError::Spawn { program: "true".to_owned(), source })?;
    drop(group);
    if limit.cgroup.exists() {
        let source = io::ErrorKind::ResourceBusy.into();
        return Err(VmmError::File { what: "remove cgroup", path: limit.cgroup, source });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named_and_nothing_is_left() {
        let plain = tempfile::tempdir().unwrap();
        let error = try_memory_limit(&MemoryCgroups::at(plain.path().to_owned(), "x")).unwrap_err();
        assert!(error.to_string().contains("memory.max"), "{error}");
        assert_eq!(fs::read_dir(plain.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_a_kill_for_the_groups_own_limit_counts() {
        let group = tempfile::tempdir().unwrap();
        let reached = |events: &str| {
            fs::write(group.path().join("memory.events"), events).unwrap();
            limit_was_reached(group.path())
        };
        assert!(reached("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n"));
        assert!(!reached("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n"), "the host was short of it");
        assert!(
            !reached("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n"),
            "it found something to free"
        );
        assert!(!reached(""));
    }
}
