//! Limits of VMMs, by cgroups of either version.
//!
//! ```text
//! <base>/forkd-<daemon>-<sandbox>    one VMM, which enters before its program begins
//! ```
//!
//! There is a base for each hierarchy of the host that has a controller of use: one with version 2,
//! up to four with version 1. A group bounds memory, time of the processors and threads, and shares
//! processors and block devices out evenly between VMMs, whatever each of them does.
//!
//! Charged to a group is what its process is the first to touch: its private pages, among them
//! those that the guest has written; page tables; and pages of files on tmpfs that nobody had in
//! memory before. What the daemon copies, writes or maps is charged to the daemon.
//!
//! Guarantees: a VMM is in its groups before it has memory of its own; nothing of it is swapped out
//! where the kernel accounts swap; a group goes with its process, unless the process is released.
//!
//! Does not do: choose limits, share one group between processes, limit space on disk.

mod place;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_types::ByteCount;
use serde::{Deserialize, Serialize};

pub use self::place::Controller;
use self::place::{Found, Version};
use crate::VmmError;

/// A process that has been waited for leaves its group a moment later.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(1);
const REMOVAL_POLL: Duration = Duration::from_millis(2);

/// The kernel charges up to 64 pages at once: a group with less to spare has met its limit.
const CHARGED_AT_ONCE: u64 = 64 * forkd_types::PAGE_BYTES;

/// Time of the processors is shared out in periods of this length, the kernel's own choice.
const CPU_PERIOD_US: u64 = 100_000;

/// What one VMM may use at most. None: as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Memory and swap; a whole number of pages.
    pub memory: Option<ByteCount>,
    /// Time of the processors, in thousandths of one.
    pub millicpus: Option<u32>,
    /// Threads.
    pub threads: Option<u32>,
}

/// The cgroups of one VMM, which are made and removed with it, and what they limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmCgroup {
    /// One for each hierarchy.
    groups: Vec<Group>,
    /// What the VMM may use; what a host cannot limit is not limited.
    pub limits: CgroupLimits,
}

/// A directory with the files of some controllers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    path: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
}

impl VmmCgroup {
    /// The directories of its groups.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.groups.iter().map(|group| group.path.as_path())
    }

    /// The memory limit, if a process in this group was ended because of it. A group that is gone
    /// tells nothing.
    #[must_use]
    pub fn memory_limit_reached(&self) -> Option<ByteCount> {
        let has_memory = |group: &&Group| group.controllers.contains(&Controller::Memory);
        let group = self.groups.iter().find(has_memory)?;
        self.limits.memory.filter(|_| group.has_met_its_memory_limit())
    }
}

/// This host, or this process, lacks what a limit needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {} limit can be set here: {reason}", controller.name())]
pub struct CgroupsUnavailable {
    controller: Controller,
    reason: String,
}

/// Where one daemon can make groups.
#[derive(Debug)]
pub struct Cgroups {
    found: Found,
    prefix: String,
}

impl Cgroups {
    /// Finds groups below which this process may make others. `daemon` tells its groups from those
    /// of others. With version 2 this process may move into a group below the one that it was
    /// started in, because one with processes cannot limit those below it.
    #[must_use]
    pub fn find(daemon: &str) -> Self {
        Self { found: place::find(), prefix: prefix(daemon) }
    }

    /// Those that a daemon makes below `base`, which has the memory controller alone; for tests.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn at(base: PathBuf, daemon: &str) -> Self {
        let is_first = base.join("memory.limit_in_bytes").exists();
        let version = if is_first { Version::One } else { Version::Two };
        let hierarchy = place::Hierarchy { version, base, controllers: vec![Controller::Memory] };
        let found = Found { hierarchies: vec![hierarchy], missing: Vec::new() };
        Self { found, prefix: prefix(daemon) }
    }

    /// For a host without any; for tests.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn none(reason: &str) -> Self {
        let missing = Controller::ALL.map(|controller| (controller, reason.to_owned())).into();
        Self { found: Found { missing, ..Found::default() }, prefix: String::new() }
    }

    /// That groups made here have this controller.
    ///
    /// # Errors
    /// Says what was looked for and what stands in the way.
    pub fn require(&self, controller: Controller) -> Result<(), CgroupsUnavailable> {
        match self.found.missing.iter().find(|(missing, _)| *missing == controller) {
            Some((_, reason)) => Err(CgroupsUnavailable { controller, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The groups that all others are made in.
    pub fn bases(&self) -> impl Iterator<Item = &Path> {
        self.found.hierarchies.iter().map(|hierarchy| hierarchy.base.as_path())
    }

    /// The groups of the VM called `name`. None where there are no controllers.
    #[must_use]
    pub fn of(&self, name: &str, limits: CgroupLimits) -> Option<VmmCgroup> {
        let groups = self.found.hierarchies.iter().map(|hierarchy| Group {
            path: hierarchy.base.join(format!("{}{name}", self.prefix)),
            version: hierarchy.version,
            controllers: hierarchy.controllers.clone(),
        });
        let groups: Vec<Group> = groups.collect();
        (!groups.is_empty()).then_some(VmmCgroup { groups, limits })
    }
}

fn prefix(daemon: &str) -> String {
    format!("forkd-{daemon}-")
}

/// Removes the groups below `base` that `daemon` has made, but those to `keep`.
pub fn sweep_cgroups(base: &Path, daemon: &str, keep: &[PathBuf]) {
    let prefix = prefix(daemon);
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(&prefix);
        if is_ours && entry.path().is_dir() && !keep.contains(&entry.path()) {
            tracing::info!(group = %entry.path().display(), "removing a group left behind");
            remove(&entry.path());
        }
    }
}

/// The number after a word at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

impl Group {
    fn make(&self) -> Result<(), VmmError> {
        let failed = |source| VmmError::file("make cgroup", &self.path, source);
        match fs::create_dir(&self.path) {
            // Of a process that has ended.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                remove(&self.path);
                fs::create_dir(&self.path).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    fn set(&self, limits: &CgroupLimits) -> Result<(), VmmError> {
        for controller in &self.controllers {
            match (controller, self.version) {
                (Controller::Memory, version) => {
                    limits.memory.map_or(Ok(()), |bytes| self.set_memory(version, bytes))?;
                }
                (Controller::Cpu, version) => {
                    limits.millicpus.map_or(Ok(()), |most| self.set_cpu(version, most))?;
                }
                (Controller::Pids, _) => {
                    let set = |threads: u32| self.write("pids.max", &threads.to_string());
                    limits.threads.map_or(Ok(()), set)?;
                }
                // All groups have the same weight.
                (Controller::Io, _) => {}
            }
        }
        Ok(())
    }

    fn set_memory(&self, version: Version, bytes: ByteCount) -> Result<(), VmmError> {
        let bytes = bytes.get().to_string();
        match version {
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

    /// A kernel may be built to share time out, and not to limit it.
    fn set_cpu(&self, version: Version, millicpus: u32) -> Result<(), VmmError> {
        let quota = u64::from(millicpus) * CPU_PERIOD_US / 1000;
        match version {
            Version::One => self.write_if_there("cpu.cfs_quota_us", &quota.to_string()),
            Version::Two => self.write_if_there("cpu.max", &format!("{quota} {CPU_PERIOD_US}")),
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), VmmError> {
        let path = self.path.join(file);
        // Not created: a file that is not there is a controller that is not there.
        let open = OpenOptions::new().write(true).open(&path);
        let written = open.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
        written.map_err(|source| VmmError::file("write", path, source))
    }

    /// For files that depend on how the kernel was built.
    fn write_if_there(&self, file: &str, text: &str) -> Result<(), VmmError> {
        if self.path.join(file).exists() { self.write(file, text) } else { Ok(()) }
    }

    fn has_met_its_memory_limit(&self) -> bool {
        let read = |file| fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let killed = |text: &str| field(text, "oom_kill").is_some_and(|count| count > 0);
        match self.version {
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
                let met =
                    most.zip(limit).is_some_and(|(most, limit)| most + CHARGED_AT_ONCE >= limit);
                killed(&read("memory.oom_control")) && met
            }
        }
    }
}

/// Cgroups with limits, for one process. Dropping it removes them, unless they are released.
#[derive(Debug)]
pub struct Cgroup {
    plan: VmmCgroup,
    released: bool,
}

impl Cgroup {
    /// Makes the groups, empty.
    ///
    /// # Errors
    /// Names the file that the system did not permit to be made or written.
    pub fn make(plan: &VmmCgroup) -> Result<Self, VmmError> {
        let cgroup = Self::adopt(plan);
        for group in &cgroup.plan.groups {
            group.make()?;
            group.set(&cgroup.plan.limits)?;
        }
        Ok(cgroup)
    }

    /// Those of a process that another daemon has started.
    pub(crate) fn adopt(plan: &VmmCgroup) -> Self {
        Self { plan: plan.clone(), released: false }
    }

    /// What a process writes to in order to enter, one file for each group.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn entrances(&self) -> Result<Vec<File>, VmmError> {
        let open = |group: &Group| {
            let path = group.path.join("cgroup.procs");
            let open = OpenOptions::new().write(true).open(&path);
            open.map_err(|source| VmmError::file("open", path, source))
        };
        self.plan.groups.iter().map(open).collect()
    }

    /// The memory limit, if the kernel has ended the process because of it.
    #[must_use]
    pub fn memory_limit_reached(&self) -> Option<ByteCount> {
        self.plan.memory_limit_reached()
    }

    /// Leaves the groups alone: their process lives on.
    pub fn release(&mut self) {
        self.released = true;
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.released {
            self.plan.paths().for_each(remove);
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

/// Limits that a probe sets and takes away again.
const PROBE_LIMITS: CgroupLimits = CgroupLimits {
    memory: Some(ByteCount::from_mib(16)),
    millicpus: Some(1000),
    threads: Some(16),
};

/// Tries out what limits need: makes groups, limits them, starts a program in them, removes them.
///
/// # Errors
/// Says which step was refused.
pub fn try_cgroups(cgroups: &Cgroups) -> Result<(), VmmError> {
    let name = format!("probe-{}", std::process::id());
    let Some(plan) = cgroups.of(&name, PROBE_LIMITS) else { return Ok(()) };
    let cgroup = Cgroup::make(&plan)?;
    let mut command = std::process::Command::new("true");
    for entrance in cgroup.entrances()? {
        forkd_sys::confine::enter_cgroup(&mut command, entrance);
    }
    let status = command.status();
    status.map_err(|source| VmmError::Spawn { program: "true".to_owned(), source })?;
    drop(cgroup);
    match plan.paths().find(|path| path.exists()) {
        Some(left) => {
            let source = io::ErrorKind::ResourceBusy.into();
            Err(VmmError::file("remove cgroup", left, source))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named_and_nothing_is_left() {
        let plain = tempfile::tempdir().unwrap();
        let error = try_cgroups(&Cgroups::at(plain.path().to_owned(), "x")).unwrap_err();
        assert!(error.to_string().contains("memory.max"), "{error}");
        assert_eq!(fs::read_dir(plain.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_a_kill_for_the_groups_own_limit_counts() {
        let base = tempfile::tempdir().unwrap();
        let limits = CgroupLimits { memory: Some(ByteCount::from_mib(7)), ..Default::default() };
        let plan = Cgroups::at(base.path().to_owned(), "x").of("sb", limits).unwrap();
        fs::create_dir(plan.paths().next().unwrap()).unwrap();
        let reached = |events: &str| {
            fs::write(base.path().join("forkd-x-sb/memory.events"), events).unwrap();
            plan.memory_limit_reached() == limits.memory
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
