//! `forkd`: the command line. A client of the daemon, and the program that is the daemon.
//!
//! ```text
//! command_line   all that may be written, and the exit code
//! verb           one file each; listed in verb/mod.rs
//! attach         a process in a sandbox joined to our streams
//! start, follow  a sandbox by the name of what it starts from; what takes long
//! daemon         finding the daemon, starting one
//! options        options that several verbs have
//! console        what we say and show; exit: the codes
//! ```
//!
//! Each imports only what stands below it.
//!
//! Guarantees: standard output carries data only, talk goes to standard error; with `--json` the
//! data is JSON; every failure ends with a hint where one is known; exit codes are those of
//! [`exit`].
//!
//! Does not do: own a VM. Every verb asks the daemon, which is started when none runs.

mod attach;
mod build;
mod command_line;
mod console;
mod daemon;
mod exit;
mod follow;
mod options;
#[cfg(test)]
mod reference;
mod samples;
mod standby;
mod start;
mod verb;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    match command_line::parse(&words) {
        Ok(asked) => asked.run(),
        Err(code) => code,
    }
}
