//! The second process: takes messages from the pipe and writes pages of its own.
//!
//! Each message must be the one after the last. It is also the number of the next write to the
//! process's pages; so what both processes and the pipe between them hold belongs together. A
//! request to check travels behind all messages, and is answered when they have been taken.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use crate::scatter::Scatter;
use crate::verdict::Violations;

/// Instead of a message: verify everything and answer.
pub(crate) const CHECK: u64 = u64::MAX;

const PAGES: u64 = 1024;

/// Consumes standard input until it ends; answers go to standard output.
pub(crate) fn run(seed: u64) -> io::Result<()> {
    consume(seed, BufReader::new(io::stdin().lock()), io::stdout().lock())
}

fn consume(seed: u64, mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let scatter = Scatter::new("consumer", seed, PAGES);
    let mut violations = Violations::default();
    let mut taken = 0u64;
    loop {
        let mut bytes = [0; 8];
        match input.read_exact(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        match u64::from_le_bytes(bytes) {
            CHECK => {
                scatter.verify_all(taken, &mut violations);
                answer(&mut output, taken, &violations)?;
            }
            message => {
                taken += 1;
                violations.expect(taken, message, || "pipe: next message".to_owned());
                scatter.write(taken, &mut violations);
            }
        }
    }
}

/// Lines of `expected found at`, then `done count taken`.
fn answer(output: &mut impl Write, taken: u64, violations: &Violations) -> io::Result<()> {
    for violation in &violations.listed {
        writeln!(output, "{} {} {}", violation.expected, violation.found, violation.at)?;
    }
    writeln!(output, "done {} {taken}", violations.count)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(messages: &[u64]) -> String {
        let input: Vec<u8> = messages.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut output = Vec::new();
        consume(3, input.as_slice(), &mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn messages_in_order_are_taken_and_each_check_is_answered() {
        assert_eq!(answers(&[1, 2, 3, CHECK, 4, CHECK]), "done 0 3\ndone 0 4\n");
    }

    #[test]
    fn a_message_that_was_lost_doubled_or_changed_is_named() {
        assert_eq!(answers(&[1, 3, CHECK]), "2 3 pipe: next message\ndone 1 2\n");
        assert_eq!(answers(&[1, 1, CHECK]), "2 1 pipe: next message\ndone 1 2\n");
    }
}
