//! The meter: measures and makes load inside a guest, for `forkd bench`.
//!
//! ```text
//!  {"start":"stall"}          reads the clock at real-time priority, notes gaps
//!  {"start":{"write":...}}    writes pages all the time, counts them
//!  {"start":{"dirty":MIB}}    holds written pages, writes them again if asked
//!  {"ask":QUESTION}           asks one of them something, prints its answer
//! ```
//!
//! Its only argument is a request; `forkd-meter-protocol` has all of them, and the answers.
//!
//! Guarantees: the programs go on in the background and the command ends when they are ready, so
//! that a host that ran it knows when they have begun. Each answer is one line of JSON. Time is the
//! guest's own: it stands still while the guest is paused, and so do the figures.
//!
//! Does not do: measure the pause window, which no guest can see, or anything about the host.

mod area;
mod background;
mod control;
mod dirty;
mod gaps;
mod isolate;
mod say;
mod stall;
mod write;

use std::io::Write as _;
use std::process::ExitCode;

use forkd_meter_protocol::{Program, Request, from_line, to_line};

use crate::background::FOREGROUND;
use crate::say::say_line;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [request] => finish(answer(request).and_then(|line| say_line(&line))),
        // Its first line of output says that it is ready, or why not.
        [request, FOREGROUND] => finish(run(request).inspect_err(|problem| {
            say_line(&format!("{}{problem}", background::FAILED)).ok();
        })),
        _ => finish(Err("one request is needed, as JSON".to_owned())),
    }
}

/// The answer to a request.
fn answer(request: &str) -> Result<String, String> {
    match understood(request)? {
        Request::Start(_) => background::start(request),
        Request::Ask(question) => {
            let line = to_line(&question).map_err(|error| error.to_string())?;
            let socket = control::socket(question.program());
            control::ask(&socket, &line).map_err(|error| error.to_string())
        }
    }
}

/// Is the program in the background.
fn run(request: &str) -> Result<(), String> {
    match understood(request)? {
        Request::Start(Program::Stall) => stall::run(),
        Request::Start(Program::Write(write)) => write::run(write),
        Request::Start(Program::Dirty(mib)) => dirty::run(mib),
        Request::Ask(_) => Err("a question starts no program".to_owned()),
    }
}

fn understood(request: &str) -> Result<Request, String> {
    from_line(request).map_err(|error| format!("`{request}`: {error}"))
}

fn finish(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            writeln!(std::io::stderr(), "forkd-meter: {problem}").ok();
            ExitCode::FAILURE
        }
    }
}
