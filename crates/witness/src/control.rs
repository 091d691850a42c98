//! The conversation between `write`, which has the parties, and `check`, which asks.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ChildStdout;
use std::sync::Arc;
use std::time::Duration;

use crate::consumer::CHECK;
use crate::frame::frames;
use crate::gate::{Gate, Report};
use crate::page::Page;
use crate::verdict::{Verdict, Violation, Violations};

/// Where `write` listens, in the abstract name space: there is nothing to clean up.
const NAME: &str = "forkd-witness";

/// Longest that `check` waits for the verdict.
const PATIENCE: Duration = Duration::from_secs(25);

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

/// Asks the running `write` to check everything; its verdict.
pub(crate) fn check() -> io::Result<String> {
    let mut stream = UnixStream::connect_addr(&address()?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut verdict = String::new();
    stream.read_to_string(&mut verdict)?;
    Ok(verdict)
}

/// The ends of the consumer's pipes that the one who checks has.
pub(crate) struct Consumer {
    pub(crate) input: File,
    pub(crate) output: BufReader<ChildStdout>,
}

impl Consumer {
    /// What it found, and how many messages it has taken.
    fn check(&mut self) -> io::Result<(Violations, u64)> {
        self.input.write_all(&CHECK.to_le_bytes())?;
        let mut violations = Violations::default();
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line)?;
            let bad = || io::Error::other(format!("the consumer said {line:?}"));
            let (first, rest) = line.trim_end().split_once(' ').ok_or_else(bad)?;
            let (second, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
            if first == "done" {
                violations.count = number(second)?;
                return Ok((violations, number(rest)?));
            }
            let (expected, found) = (number(first)?, number(second)?);
            violations.listed.push(Violation { at: rest.to_owned(), expected, found });
        }
    }
}

/// Listens for those who ask.
pub(crate) fn listen() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address()?)
}

/// Pages whose place in guest RAM a verdict tells.
pub(crate) struct Places {
    /// Of each writer.
    pub(crate) hot: Vec<Arc<Vec<Page>>>,
    pub(crate) published: Arc<Vec<Page>>,
}

/// Serves them for ever.
pub(crate) fn serve(
    listener: &UnixListener,
    gate: &Gate,
    mut consumer: Consumer,
    seed: u64,
    places: &Places,
) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut verdict = gate.stopped(|reports| judge(reports, &mut consumer, seed));
        // Empty where the kernel does not tell.
        verdict.hot_frames =
            frames(places.hot.iter().flat_map(|hot| hot.iter())).unwrap_or_default();
        verdict.count_frames = frames(places.published.iter()).unwrap_or_default();
        // Whoever asked may have gone away.
        stream.write_all(verdict.to_json().as_bytes()).ok();
    }
}

/// Puts together what the parties found.
fn judge(reports: Vec<Report>, consumer: &mut Consumer, seed: u64) -> Verdict {
    let mut verdict = Verdict { seed, writes: vec![0; reports.len() - 1], ..Verdict::default() };
    for report in reports {
        match report {
            Report::Writer { number, writes, messages, violations } => {
                verdict.writes[number] = writes;
                verdict.messages += messages;
                verdict.violations.add(violations);
            }
            Report::Recorder { records, violations } => {
                verdict.records = records;
                verdict.violations.add(violations);
            }
        }
    }
    match consumer.check() {
        Ok((violations, taken)) => {
            let sent = verdict.messages;
            verdict.violations.add(violations);
            verdict.violations.expect(sent, taken, || "pipe: messages taken".to_owned());
        }
        Err(error) => {
            verdict.violations.expect(0, 1, || format!("consumer: {}", error.kind()));
        }
    }
    verdict
}
