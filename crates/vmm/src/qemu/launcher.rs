//! A launcher for VMMs of one QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use forkd_launcher::{Launcher, LauncherConfig};

use super::{args, jail};
use crate::{Accelerator, VmmError, VmmTools};

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
    let own_filter = filters_itself(&tools.program)?;
    Ok(VmmTools { launcher: Some(Arc::new(launcher)), own_filter, ..tools })
}

fn filters_itself(program: &Path) -> Result<bool, VmmError> {
    let mut command = Command::new(program);
    command.args(["-sandbox", args::SANDBOX, "-version"]).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    let failed = |source| VmmError::Spawn { program: program.display().to_string(), source };
    status.map(|status| status.success()).map_err(failed)
}
