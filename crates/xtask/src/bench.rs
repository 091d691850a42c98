//! `bench` and `results`: measures, and writes the results from what was measured. The harness is a
//! program in Python; see `bench/README.md`.

use std::process::{Command, ExitCode};

use crate::python::Python;
use crate::workspace::Workspace;
use crate::{build, images, setup};

/// Options of `bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure these tables only: modes, ram, dirty, chain, children.
    tables: Vec<String>,
    /// Measure few rows of each.
    #[arg(long)]
    quick: bool,
    /// Measure again what was measured with this very program.
    #[arg(long)]
    again: bool,
}

/// Options of `results`.
#[derive(clap::Args)]
pub(crate) struct ResultsOptions {
    /// Write nothing, and fail if anything would change.
    #[arg(long)]
    check: bool,
}

/// Prepares everything and measures what was not measured yet.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    setup::run(workspace)?;
    build::run(workspace)?;
    images::run(workspace, &images::Options::default())?;
    let mut harness = harness(workspace)?;
    let programs = workspace.released();
    harness.envs(workspace.places_for_vms(&programs)).env("FORKD", programs.join("forkd"));
    harness.arg("run").args(&options.tables);
    for (option, given) in [("--quick", options.quick), ("--again", options.again)] {
        if given {
            harness.arg(option);
        }
    }
    code(&mut harness)
}

/// Writes what is generated from the rows that were measured.
pub(crate) fn results(workspace: &Workspace, options: &ResultsOptions) -> anyhow::Result<ExitCode> {
    let mut harness = harness(workspace)?;
    harness.arg("results");
    if options.check {
        harness.arg("--check");
    }
    code(&mut harness)
}

fn harness(workspace: &Workspace) -> anyhow::Result<Command> {
    let mut harness = Python::prepare(workspace)?.command();
    harness.current_dir(workspace.root.join("bench")).args(["-m", "forkd_bench"]);
    Ok(harness)
}

fn code(harness: &mut Command) -> anyhow::Result<ExitCode> {
    let well = harness.status()?.success();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
