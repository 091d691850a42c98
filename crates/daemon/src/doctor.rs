//! Whether this host has what forkd needs, checked without a daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_engine::AcceleratorChoice;
use forkd_types::ByteCount;
use serde::Serialize;

use crate::{ServeConfig, socket};

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Works, with less.
    Warn,
    /// Something does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What was found.
    pub detail: String,
    /// What to do about it, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, detail: detail.into(), remedy: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name, outcome: Outcome::Warn, detail: detail.into(), remedy }
    }

    fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { outcome: Outcome::Fail, ..Self::warn(name, detail, remedy) }
    }
}

/// Less room than this for hot layers and the first template of default size does not fit.
const HOT_BYTES_MIN: ByteCount = ByteCount::from_mib(768);
/// Less than this is soon used up.
const HOT_BYTES_COMFORTABLE: ByteCount = ByteCount::from_mib(2048);
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// For QEMU to tell its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// A kernel's version as far as features depend on it.
type KernelVersion = (u32, u32);
/// Write protection of shared memory.
const KERNEL_WP_SHMEM: KernelVersion = (5, 19);
/// Protection of pages that are not there yet.
const KERNEL_WP_UNPOPULATED: KernelVersion = (6, 4);
/// `PAGEMAP_SCAN`.
const KERNEL_PAGEMAP_SCAN: KernelVersion = (6, 7);

/// Runs all checks for a daemon with this configuration. May boot a small guest to see whether KVM
/// works, which takes some seconds the first time after a boot of the host.
pub async fn run(config: &ServeConfig) -> Vec<Check> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = kernel_version(&release).unwrap_or_default();
    vec![
        qemu(config).await,
        shim(&config.shim),
        images(&config.image_dir),
        kvm(config).await,
        userfaultfd(&release, kernel),
        pagemap_scan(&release, kernel),
        hot_directory(&config.hot_dir),
        paths(config),
    ]
}

async fn qemu(config: &ServeConfig) -> Check {
    const NAME: &str = "QEMU";
    const INSTALL: &str = "install QEMU: apt-get install qemu-system-x86";
    let program = match &config.qemu {
        Some(path) => path.clone(),
        None => match in_path("qemu-system-x86_64") {
            Some(path) => path,
            None => return Check::fail(NAME, "`qemu-system-x86_64` is not in PATH", INSTALL),
        },
    };
    let mut command = tokio::process::Command::new(&program);
    command.arg("--version").kill_on_drop(true);
    match tokio::time::timeout(VERSION_DEADLINE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().next().unwrap_or_default();
            Check::ok(NAME, format!("{line} ({})", program.display()))
        }
        Ok(Ok(output)) => {
            let detail = format!("`{}` ends with {}", program.display(), output.status);
            Check::fail(NAME, detail, INSTALL)
        }
        Ok(Err(error)) => {
            Check::fail(NAME, format!("cannot run `{}`: {error}", program.display()), INSTALL)
        }
        Err(_) => Check::fail(NAME, format!("`{}` does not answer", program.display()), INSTALL),
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|p| p.is_file())
}

fn shim(path: &Path) -> Check {
    if path.is_file() {
        return Check::ok("shim", path.display().to_string());
    }
    let remedy = "build it with `make build`, or name it with FORKD_SHIM";
    Check::fail("shim", format!("`{}` does not exist", path.display()), remedy)
}

fn images(directory: &Path) -> Check {
    let remedy = "build them with `make images`, or name their directory with FORKD_IMAGE_DIR";
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join("image.json").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if names.is_empty() {
        return Check::fail("images", format!("none in `{}`", directory.display()), remedy);
    }
    names.sort();
    Check::ok("images", format!("{} in `{}`", names.join(", "), directory.display()))
}

async fn kvm(config: &ServeConfig) -> Check {
    const NAME: &str = "KVM";
    if config.accelerator == AcceleratorChoice::Forced(forkd_engine::Accelerator::Tcg) {
        let remedy = "guests are emulated, which is slower; unset FORKD_ACCEL to choose by itself";
        return Check::warn(NAME, "not used: emulation was asked for", remedy);
    }
    let needed = [&config.run_dir, &config.state_dir, &config.hot_dir];
    if let Err(error) = needed.into_iter().try_for_each(|path| socket::create_private(path)) {
        return Check::warn(NAME, format!("not tried: {error}"), "correct the directories first");
    }
    let verdict = forkd_engine::probe_kvm(&config.engine()).await;
    if verdict.works {
        return Check::ok(NAME, verdict.reason);
    }
    let remedy = "guests are emulated, which works but is slower; for KVM use a host with hardware \
                  virtualisation and give this user access to /dev/kvm";
    Check::warn(NAME, format!("not usable: {}", verdict.reason), remedy)
}

fn userfaultfd(release: &str, kernel: KernelVersion) -> Check {
    const NAME: &str = "userfaultfd";
    if kernel < KERNEL_WP_SHMEM {
        let detail = format!("Linux {release} cannot write-protect shared memory");
        return Check::fail(NAME, detail, "live branches need Linux 5.19; mode `diff` works");
    }
    let Some(way) = userfaultfd_permission() else {
        let remedy = "sysctl vm.unprivileged_userfaultfd=1, or give this user access to \
                      /dev/userfaultfd; until then mode `diff` works";
        return Check::fail(NAME, "this user may not watch memory", remedy);
    };
    if kernel < KERNEL_WP_UNPOPULATED {
        let remedy = "Linux 6.4 makes the preparation of a branch cheaper";
        return Check::warn(NAME, format!("{way}; Linux {release}"), remedy);
    }
    Check::ok(NAME, format!("{way}; Linux {release}"))
}

fn userfaultfd_permission() -> Option<&'static str> {
    if rustix::process::geteuid().is_root() {
        return Some("permitted to root");
    }
    if fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").is_ok() {
        return Some("permitted through /dev/userfaultfd");
    }
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let permitted = sysctl.is_ok_and(|text| text.trim() == "1");
    permitted.then_some("permitted by vm.unprivileged_userfaultfd")
}

fn pagemap_scan(release: &str, kernel: KernelVersion) -> Check {
    if kernel >= KERNEL_PAGEMAP_SCAN {
        return Check::ok("PAGEMAP_SCAN", format!("Linux {release}"));
    }
    let remedy = "dirty pages are found by a slower way; Linux 6.7 has the faster one";
    Check::warn("PAGEMAP_SCAN", format!("Linux {release} does not have it"), remedy)
}

fn kernel_version(release: &str) -> Option<KernelVersion> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn hot_directory(directory: &Path) -> Check {
    const NAME: &str = "hot directory";
    let remedy = "name a directory on a larger tmpfs with FORKD_HOT_DIR";
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let status = match rustix::fs::statfs(existing) {
        Ok(status) => status,
        Err(error) => {
            let detail = format!("`{}`: {error}", existing.display());
            return Check::fail(NAME, detail, remedy);
        }
    };
    let block = u64::try_from(status.f_bsize).unwrap_or_default();
    let free = ByteCount::new(status.f_bavail.saturating_mul(block));
    let detail = format!("{free} free in `{}`", directory.display());
    let is_tmpfs = u64::try_from(status.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC);
    if !is_tmpfs {
        return Check::fail(NAME, format!("`{}` is not on tmpfs", directory.display()), remedy);
    }
    if free < HOT_BYTES_MIN {
        Check::fail(NAME, detail, remedy)
    } else if free < HOT_BYTES_COMFORTABLE {
        Check::warn(NAME, detail, remedy)
    } else {
        Check::ok(NAME, detail)
    }
}

fn paths(config: &ServeConfig) -> Check {
    let checked =
        socket::check_path(&config.socket).and_then(|()| socket::check_run_dir(&config.run_dir));
    match checked {
        Ok(()) => Check::ok("run directory", config.run_dir.display().to_string()),
        Err(problem) => {
            Check::fail("run directory", problem, "choose a shorter FORKD_HOME or run directory")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_by_number() {
        assert_eq!(kernel_version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("6.12.3+deb13"), Some((6, 12)));
        assert!(kernel_version("5.19.0").unwrap() >= KERNEL_WP_SHMEM);
        assert!(kernel_version("6.10.1").unwrap() >= KERNEL_PAGEMAP_SCAN);
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn what_is_missing_fails_with_a_remedy() {
        let nowhere = Path::new("/nonexistent/forkd");
        for check in [shim(nowhere), images(nowhere), userfaultfd("5.4", (5, 4))] {
            assert_eq!(check.outcome, Outcome::Fail, "{check:?}");
            assert!(check.remedy.is_some());
        }
        assert_eq!(pagemap_scan("6.1", (6, 1)).outcome, Outcome::Warn);
    }

    #[test]
    fn a_hot_directory_on_a_disk_is_refused() {
        assert_eq!(hot_directory(Path::new("/proc/self")).outcome, Outcome::Fail);
    }
}
