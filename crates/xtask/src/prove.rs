//! `prove`: branches writing sources as often as one likes and checks that each snapshot is of one
//! instant. The same test runs, fewer times, in `test`.

use std::process::ExitCode;

use crate::workspace::Workspace;
use crate::{build, images, setup};

/// Options of `prove`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many branches.
    #[arg(long)]
    branches: Option<u64>,
    /// Repeats the choices of an earlier run, which printed it.
    #[arg(long)]
    seed: Option<u64>,
}

/// Prepares everything and runs the proof; the exit code tells whether it holds.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    setup::run(workspace)?;
    build::run(workspace)?;
    images::run(workspace, &images::Options::default())?;
    let mut cargo = workspace.cargo();
    cargo.envs(workspace.places_for_vms(&workspace.released()));
    cargo.args(["test", "--locked", "-p", "forkd-system-tests", "--test", "vm_prove"]).args([
        "branches_of_writing_sources",
        "--",
        "--nocapture",
    ]);
    for (name, value) in [("FORKD_PROVE_N", options.branches), ("FORKD_PROVE_SEED", options.seed)] {
        if let Some(value) = value {
            cargo.env(name, value.to_string());
        }
    }
    let passed = cargo.status()?.success();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
