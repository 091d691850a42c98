//! `forkd`: the command line. A client of the daemon, and the program that is the daemon.
//!
//! Guarantees: standard output carries data only, talk goes to standard error; with `--json` the
//! data is JSON; every failure ends with a hint where one is known; exit codes are those of
//! [`exit`].
//!
//! Does not do: own a VM. Every verb asks the daemon, which is started when none runs.

mod args;
mod attach;
mod connect;
mod exit;
mod manner;
mod output;
mod paths;
mod place;
mod program;
mod progress;
#[cfg(test)]
mod reference;
mod report;
mod samples;
mod settings;
mod signals;
mod start;
mod terminal;
mod verb;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    manner::set(cli.global.manner());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report::failure(&anyhow::Error::new(error)),
    };
    match runtime.block_on(verb::run(cli)) {
        Ok(code) => code,
        Err(error) => report::failure(&error),
    }
}
