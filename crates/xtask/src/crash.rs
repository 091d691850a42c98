//! `crash`: crashes a store as often as one likes and checks what is left. The same test runs, 500
//! times, in `test`. It needs neither QEMU nor images.

use std::process::ExitCode;

use crate::workspace::Workspace;

/// Options of `crash`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many crashes.
    #[arg(long)]
    crashes: Option<u64>,
    /// Repeats the choices of an earlier run, which printed it.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the test; the exit code tells whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked", "-p", "forkd-store", "--test", "crash"]);
    cargo.args(["--", "--nocapture"]);
    for (name, value) in [("FORKD_CRASH_N", options.crashes), ("FORKD_CRASH_SEED", options.seed)] {
        if let Some(value) = value {
            cargo.env(name, value.to_string());
        }
    }
    let passed = cargo.status()?.success();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
