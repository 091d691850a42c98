//! A launcher for VMMs of one QEMU, and what all programs of launchers are started by.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use forkd_launcher::{Descriptor, Job, LaunchError, Launcher, LauncherConfig};
use rustix::process::Pid;

use super::{args, jail};
use crate::{Abilities, VmmError, VmmTools};
use forkd_types::Accelerator;

/// Gives `tools` a launcher, the program `launcher`. The roots of its VMMs are built on the empty
/// directory `root`.
///
/// # Errors
/// When this host does not permit what it needs; the error names it, with the remedy.
pub fn with_launcher(
    tools: VmmTools,
    launcher: PathBuf,
    accelerator: Accelerator,
    root: PathBuf,
) -> Result<VmmTools, VmmError> {
    let setup = jail::setup(&tools.program, &tools.shim, accelerator, root)?;
    let launcher = Launcher::start(LauncherConfig { program: launcher, setup })?;
    let abilities = Abilities { own_filter: filters_itself(&tools.program)?, ..tools.abilities };
    Ok(VmmTools { launcher: Some(Arc::new(launcher)), abilities, ..tools })
}

/// Starts the program of `job`, which has `descriptors` under their numbers, in the cgroups of
/// which `entrances` are open.
pub(super) fn launch(
    launcher: &Launcher,
    job: Job,
    descriptors: &[(BorrowedFd<'_>, i32)],
    entrances: &[File],
) -> Result<Pid, LaunchError> {
    let own = descriptors.iter().map(|(fd, _)| *fd);
    let fds: Vec<BorrowedFd<'_>> = own.chain(entrances.iter().map(AsFd::as_fd)).collect();
    let numbered = descriptors.iter().map(|(_, number)| *number).enumerate();
    let job = Job {
        descriptors: numbered.map(|(index, number)| Descriptor { index, number }).collect(),
        cgroups: (descriptors.len()..fds.len()).collect(),
        ..job
    };
    launcher.launch(job, &fds)
}

fn filters_itself(program: &Path) -> Result<bool, VmmError> {
    let mut command = Command::new(program);
    command.args(["-sandbox", args::SANDBOX, "-version"]).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let failed = |source| VmmError::Spawn { program: program.display().to_string(), source };
    status.map(|status| status.success()).map_err(failed)
}
