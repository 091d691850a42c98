//! `demo`: from a fresh clone to branching a running sandbox, in one command.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::workspace::Workspace;
use crate::{build, images, setup};

/// The program that shows the product.
const SCRIPT: &str = "recipes/speculative-fix/run.py";

/// Options of `demo`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Passed to the demonstration as they are.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Prepares everything, runs the demonstration and passes on its exit code.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let script = workspace.root.join(SCRIPT);
    if !script.is_file() {
        bail!("the demonstration {SCRIPT} is missing");
    }
    setup::run(workspace)?;
    build::run(workspace)?;
    images::run(workspace, &images::Options::default())?;
    let mut demo = command(workspace, &workspace.released());
    let status = demo.args(&options.arguments).status().context("start python3")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The demonstration of the product whose programs are in a folder.
pub(crate) fn command(workspace: &Workspace, programs: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .arg(workspace.root.join(SCRIPT))
        .current_dir(&workspace.root)
        .env("FORKD", programs.join("forkd"))
        .env("FORKD_IMAGE_DIR", workspace.images());
    command
}
