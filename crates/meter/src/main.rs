//! The meter: measures and makes load inside a guest, for `forkd bench`.
//!
//! ```text
//!  forkd-meter stall --most-ms N           reads the clock at real-time priority, notes gaps
//!  forkd-meter write --mib N --rate R      writes pages all the time, counts them
//!  forkd-meter dirty --mib N               holds written pages, writes them again if asked
//!  forkd-meter ask stall|write|dirty WORD  asks one of them something, prints its answer
//! ```
//!
//! Guarantees: the first three go on in the background and the command ends when they are ready, so
//! that a host that ran it knows when they have begun. Each answer is one line of JSON. Time is the
//! guest's own: it stands still while the guest is paused, and so do the figures.
//!
//! Does not do: measure the pause window, which no guest can see, or anything about the host.

mod area;
mod args;
mod background;
mod control;
mod dirty;
mod gaps;
mod isolate;
mod output;
mod stall;
mod write;

use std::io::Write as _;
use std::process::ExitCode;

use crate::args::{Command, Program};
use crate::output::say;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args::parse(&arguments) {
        Ok(Command::Ask { program, word }) => {
            control::ask(&control::socket(program), &word).map_err(|error| error.to_string())
        }
        Ok(Command::Start(_)) => background::start(&arguments),
        Ok(Command::Run(program)) => return run(&program),
        Err(problem) => {
            complain(&format!("{problem}\n{}", args::USAGE));
            return ExitCode::from(2);
        }
    };
    match outcome.and_then(|line| say(&line)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            complain(&problem);
            ExitCode::FAILURE
        }
    }
}

/// Is the program in the background. Its first line of output says that it is ready, or why not.
fn run(program: &Program) -> ExitCode {
    let outcome = match program {
        Program::Stall(options) => stall::run(*options),
        Program::Write(options) => write::run(*options),
        Program::Dirty(options) => dirty::run(*options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(&format!("{}{problem}", background::FAILED)).ok();
            ExitCode::FAILURE
        }
    }
}

fn complain(text: &str) {
    writeln!(std::io::stderr(), "forkd-meter: {text}").ok();
}
