//! What this host permits, for `doctor`: each ability is tried out and not asked for.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_launcher::NoSubordinateIds;
use forkd_sys::confine::try_network_namespace;
use forkd_sys::mapping::PrivateMapping;
use forkd_sys::pagemap::{AddressRange, PrivatePageScanner, ScanMethod, Swapped};
use forkd_sys::uffd::{UffdError, Userfaultfd};
use forkd_types::{Accelerator, ByteCount, Isolation, PAGE_BYTES, PageIndex};
use forkd_vmm::{Cgroups, Controller, VmmTools, qemu, try_cgroups};

use super::accelerator;
use super::images::examine;
use super::isolation::reached_by;
use crate::{EngineConfig, describe};

/// For a fault to show after the write that causes it.
const FAULT_DEADLINE: Duration = Duration::from_secs(2);
/// Pages of the memory that is tried with.
const PAGES: u64 = 8;

/// What write protection can do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProtection {
    /// Pages that are not present can be protected too.
    pub unpopulated: bool,
}

/// What cgroups of VMMs can limit on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupSupport {
    /// The groups that those of VMMs are made in.
    pub bases: Vec<PathBuf>,
    /// Controllers that are not there, with the reason.
    pub missing: Vec<String>,
}

/// Makes cgroups with limits, starts a program in them, and removes them.
///
/// # Errors
/// Says what stands in the way of a limit where there is a controller for it.
pub fn try_limits() -> Result<CgroupSupport, String> {
    let cgroups = Cgroups::find("doctor");
    try_cgroups(&cgroups).map_err(|error| describe(&error))?;
    let missing = Controller::ALL
        .into_iter()
        .filter_map(|controller| cgroups.require(controller).err().map(|error| error.to_string()));
    let bases = cgroups.bases().map(Path::to_owned).collect();
    Ok(CgroupSupport { bases, missing: missing.collect() })
}

/// Makes a network namespace.
///
/// # Errors
/// Says what stands in the way.
pub fn try_network() -> Result<(), String> {
    try_network_namespace().map_err(|error| error.to_string())
}

/// Protects a page of a private mapping of a file in `directory`, writes to it, and releases it.
///
/// # Errors
/// Says which step was refused.
pub fn try_write_protection(directory: &Path) -> Result<WriteProtection, String> {
    let said = |error: UffdError| describe(&error);
    let uffd = Userfaultfd::for_this_process().map_err(said)?;
    let mapping = map(directory)?;
    let page = PageIndex::new(1);
    mapping.store(page, 0, 1);
    let (start, length) = (mapping.address(), mapping.length().get());
    uffd.register(start, length).map_err(said)?;
    let at = start + page.byte_offset();
    uffd.protect(at, PAGE_BYTES).map_err(said)?;
    let unpopulated = uffd.protects_unpopulated();
    let held = std::thread::scope(|scope| {
        let writer = scope.spawn(|| mapping.store(page, 0, 2));
        let fault = wait_for_fault(&uffd, || writer.is_finished());
        let before = mapping.load(page, 0);
        let released = uffd.release(at, PAGE_BYTES);
        // Closing it lets the writer go on in any case.
        drop(uffd);
        released.and(fault).map(|fault| fault == Some(at) && before == 1)
    });
    match held.map_err(said)? && mapping.load(page, 0) == 2 {
        true => Ok(WriteProtection { unpopulated }),
        false => Err("a write to a protected page was not held up".to_owned()),
    }
}

/// The page that a thread waits to write, unless it is done before it had to wait.
fn wait_for_fault(uffd: &Userfaultfd, done: impl Fn() -> bool) -> Result<Option<u64>, UffdError> {
    let begun = Instant::now();
    let mut faults = Vec::new();
    while faults.is_empty() && begun.elapsed() < FAULT_DEADLINE && !done() {
        uffd.read_write_faults(&mut faults)?;
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(faults.first().copied())
}

/// Looks for the one page of a private mapping that was written. Gives whether the kernel has the
/// quick way for it.
///
/// # Errors
/// When page tables cannot be read, or do not tell the truth.
pub fn try_page_scan(directory: &Path) -> Result<bool, String> {
    let mapping = map(directory)?;
    if (0..PAGES).any(|page| mapping.load(PageIndex::new(page), 0) != 0) {
        return Err("new memory is not empty".to_owned());
    }
    mapping.store(PageIndex::new(3), 0, 1);
    let me = rustix::process::getpid();
    let mut scanner = PrivatePageScanner::of(me).map_err(|error| error.to_string())?;
    let start = mapping.address();
    let range = AddressRange { start, end: start + mapping.length().get() };
    let mut found = Vec::new();
    scanner.scan(range, Swapped::Included, &mut found).map_err(|error| error.to_string())?;
    let written = start + 3 * PAGE_BYTES;
    if found != [AddressRange { start: written, end: written + PAGE_BYTES }] {
        return Err("the page tables show other pages than were written".to_owned());
    }
    Ok(scanner.method() == ScanMethod::Ioctl)
}

fn map(directory: &Path) -> Result<PrivateMapping, String> {
    let path = directory.join("doctor-memory");
    let bytes = ByteCount::new(PAGES * PAGE_BYTES);
    let mapped = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .and_then(|file| file.set_len(bytes.get()).map(|()| file))
        .and_then(|file| PrivateMapping::of(&file, bytes));
    // The mapping keeps it.
    std::fs::remove_file(&path).ok();
    mapped.map_err(|error| format!("`{}`: {error}", path.display()))
}

/// The QEMU of this configuration: its program and version.
///
/// # Errors
/// When it cannot be run, or is none.
pub fn qemu(config: &EngineConfig) -> Result<(PathBuf, String), String> {
    let program = emulating(config).program;
    let version = qemu::version(&program).map_err(|error| describe(&error))?;
    Ok((program, version))
}

/// Starts that QEMU without a guest and gives the commands that it lacks.
///
/// # Errors
/// When it does not start or does not answer, or cannot load its library.
pub fn missing_commands(config: &EngineConfig) -> Result<Vec<&'static str>, String> {
    qemu::missing_commands(&emulating(config)).map_err(|error| describe(&error))
}

/// The full program: it emulates, whatever guests run on.
fn emulating(config: &EngineConfig) -> VmmTools {
    accelerator::tools(config, Accelerator::Tcg)
}

/// What keeps VMMs from being isolated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotIsolated {
    /// What was refused.
    pub problem: String,
    /// What would help.
    pub remedy: String,
}

/// How far VMMs are isolated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// So far.
    pub level: Isolation,
    /// What keeps VMMs from users of their own, where the daemon's user is not root.
    pub no_own_users: Option<NotIsolated>,
}

/// How far VMMs of this configuration can be isolated, whatever its policy. The empty `directory`
/// stays empty.
///
/// # Errors
/// When they cannot.
pub fn try_isolation(config: &EngineConfig, directory: &Path) -> Result<Reached, NotIsolated> {
    let (launcher, root) = (config.launcher.clone(), directory.to_owned());
    let tools = qemu::with_launcher(emulating(config), launcher, Accelerator::Tcg, root);
    let reached = |tools: VmmTools| {
        let why = tools.launcher.as_ref().and_then(|launcher| launcher.why_no_ids().cloned());
        let no_own_users = why.map(|why| {
            let NoSubordinateIds { problem, remedy } = why;
            NotIsolated { problem, remedy }
        });
        Reached { level: reached_by(&tools), no_own_users }
    };
    tools.map(reached).map_err(|error| match error.not_permitted() {
        Some((problem, remedy)) => NotIsolated { problem, remedy: remedy.to_owned() },
        None => NotIsolated {
            problem: describe(&error),
            remedy: "install forkd-launcher beside forkd, or set FORKD_LAUNCHER to its path".into(),
        },
    })
}

/// The images in a directory: each one's name, and what is wrong with it.
#[must_use]
pub fn images(directory: &Path) -> Vec<(String, Option<String>)> {
    examine(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_pages_are_found_on_every_kernel() {
        assert!(try_page_scan(Path::new("/dev/shm")).is_ok());
        assert!(try_page_scan(Path::new("/nonexistent")).unwrap_err().contains("/nonexistent"));
    }
}
