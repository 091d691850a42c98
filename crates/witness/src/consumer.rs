//! The second process: takes messages from the pipe and writes pages of its own.
//!
//! Each message must be the one after the last. It is also the number of the next write to the
//! process's pages; so what both processes and the pipe between them hold belongs together. A
//! request to check travels behind all messages, and is answered when they have been taken.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use crate::scatter::Scatter;
use crate::verdict::Complaints;

/// Instead of a message: verify everything and answer.
pub(crate) const CHECK: u64 = u64::MAX;

const PAGES: u64 = 1024;

/// Consumes standard input until it ends.
pub(crate) fn run(seed: u64) -> io::Result<()> {
    let scatter = Scatter::new("consumer", seed, PAGES);
    let mut complaints = Complaints::default();
    let mut input = BufReader::new(io::stdin().lock());
    let mut taken = 0u64;
    loop {
        let mut bytes = [0; 8];
        match input.read_exact(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        match u64::from_le_bytes(bytes) {
            CHECK => {
                scatter.verify_all(taken, &mut complaints);
                answer(taken, &complaints)?;
            }
            message => {
                taken += 1;
                complaints.expect(taken, message, || "pipe: next message".to_owned());
                scatter.write(taken, &mut complaints);
            }
        }
    }
}

/// Lines of `expected found at`, then `done count taken`.
fn answer(taken: u64, complaints: &Complaints) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for complaint in &complaints.told {
        writeln!(output, "{} {} {}", complaint.expected, complaint.found, complaint.at)?;
    }
    writeln!(output, "done {} {taken}", complaints.count)?;
    output.flush()
}
