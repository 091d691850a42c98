//! A launcher for VMMs of one QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forkd_launcher::{Job, LaunchError, Launcher, LauncherConfig};
use rustix::process::Pid;

use super::{args, jail};
use crate::{Accelerator, VmmError, VmmTools};

/// Starts confined VMMs.
#[derive(Debug)]
pub struct QemuLauncher {
    launcher: Launcher,
    filter: bool,
}

impl QemuLauncher {
    /// Starts the launcher `program` for VMMs of `tools`. Their roots are built on the empty
    /// directory `root`.
    ///
    /// # Errors
    /// When this host does not permit what it needs; the error names it, with the remedy.
    pub fn start(
        program: PathBuf,
        tools: &VmmTools,
        accelerator: Accelerator,
        root: PathBuf,
    ) -> Result<Self, VmmError> {
        let setup = jail::setup(&tools.program, &tools.shim, accelerator, root)?;
        let launcher = Launcher::start(LauncherConfig { program, setup })?;
        Ok(Self { launcher, filter: filters_itself(&tools.program)? })
    }

    /// Whether its VMMs can have users and groups of their own.
    #[must_use]
    pub fn has_own_ids(&self) -> bool {
        self.launcher.has_own_ids()
    }

    /// Whether this QEMU was built with a filter of system calls of its own. Debian's microVM build
    /// was not.
    pub(super) fn has_filter(&self) -> bool {
        self.filter
    }

    pub(super) fn launch(
        &self,
        job: Job,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Pid, LaunchError> {
        self.launcher.launch(job, fds)
    }
}

fn filters_itself(program: &Path) -> Result<bool, VmmError> {
    let mut command = Command::new(program);
    command.args(["-sandbox", args::SANDBOX, "-version"]).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let failed = |source| VmmError::Spawn { program: program.display().to_string(), source };
    status.map(|status| status.success()).map_err(failed)
}
