//! `forkd-witness`: a program for a guest, in which a torn cut of memory, registers, pipe and disk
//! shows.
//!
//! ```text
//! forkd-witness write --seed S --pages P --disk DIR     writes for ever
//! forkd-witness check                                   stops it, prints a verdict, lets it go on
//! ```
//!
//! Two threads write memory ([`writer`]), the first of them also into a pipe to a second process
//! ([`consumer`]); a third thread writes records to disk ([`recorder`]). What each of them must find
//! follows from the seed and from one count that it keeps in a register. So a check in a child can
//! tell whether all belongs to one instant, and since every place is verified before it is written
//! again, it can still tell after the child has run on.
//!
//! `P` is the number of pages of each writer that are written in random order, a power of two.
//!
//! Does not do: know that it is branched. Whoever branches runs `check` in the child.

mod consumer;
mod control;
mod frame;
mod gate;
mod order;
mod page;
mod recorder;
mod scatter;
mod verdict;
mod writer;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use control::{Consumer, Places};
use gate::Gate;
use page::pages;
use recorder::Recorder;
use writer::Writer;

/// Threads that write memory.
const WRITERS: usize = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; the exit code tells as well.
            writeln!(io::stderr(), "forkd-witness: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> io::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["write", "--seed", seed, "--pages", pages, "--disk", directory] => {
            write(number(seed)?, number(pages)?, Path::new(directory))
        }
        ["consume", "--seed", seed] => consumer::run(number(seed)?),
        ["check"] => writeln!(io::stdout(), "{}", control::check()?),
        _ => Err(io::Error::other("use: write --seed S --pages P --disk DIR, or check")),
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| io::Error::other(format!("{text} is not a number")))
}

fn write(seed: u64, count: u64, directory: &Path) -> io::Result<()> {
    if !count.is_power_of_two() {
        return Err(io::Error::other(format!("{count} pages are not a power of two")));
    }
    let listener = control::listen()?;
    let mut process = Command::new(std::env::current_exe()?)
        .args(["consume", "--seed", &seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(io::Error::other("the consumer has no pipes"));
    };
    let input = File::from(OwnedFd::from(input));
    let mut pipe = Some(input.try_clone()?);
    let consumer = Consumer { input, output: BufReader::new(output) };
    // The writers' counts, then the recorder's.
    let published = Arc::new(pages(WRITERS as u64 + 1));
    let mut hot = Vec::new();
    let gate = Arc::new(Gate::new(WRITERS + 1));
    for number in 0..WRITERS {
        let writer = Writer::new(number, seed, count, Arc::clone(&published), pipe.take());
        hot.push(writer.hot());
        let gate = Arc::clone(&gate);
        std::thread::Builder::new().name(format!("writer{number}")).spawn(move || {
            writer.run(&gate);
        })?;
    }
    let recorder = Recorder::new(WRITERS, directory, Arc::clone(&published))?;
    let at_recorder = Arc::clone(&gate);
    std::thread::Builder::new().name("recorder".to_owned()).spawn(move || {
        recorder.run(&at_recorder);
    })?;
    control::serve(&listener, &gate, consumer, seed, &Places { hot, published })
}
