//! What becomes of the output of test programs: all of it is logged, failures are shown, results
//! are counted.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context;

use super::libtest::{self, Counts};
use crate::progress::say;

/// The package with the tests of the whole.
pub(super) const SYSTEM_TESTS: &str = "forkd-system-tests";

/// What reads the output of test programs.
pub(super) struct Harness {
    log: File,
    pub(super) counts: Counts,
    /// From the harness's "failures:" to its result: what the failed tests printed.
    in_failures: bool,
}

impl Harness {
    pub(super) fn new(log: &Path) -> anyhow::Result<Self> {
        let log = File::create(log).with_context(|| format!("create {}", log.display()))?;
        Ok(Self { log, counts: Counts::default(), in_failures: false })
    }

    /// What was read so far does not count.
    pub(super) fn forget(&mut self) {
        self.counts = Counts::default();
        self.in_failures = false;
    }

    /// Takes a line: all go to the log; failed tests and their output are shown as well. Returns it
    /// as text.
    pub(super) fn line(&mut self, bytes: &[u8]) -> anyhow::Result<String> {
        self.log.write_all(bytes).context("write the log")?;
        let text = String::from_utf8_lossy(bytes);
        let line = text.trim_end();
        self.counts.read_line(line);
        let is_result = line.starts_with("test result: ");
        self.in_failures = (self.in_failures || line == "failures:") && !is_result;
        let is_failure = libtest::outcome(line).is_some_and(|(_, outcome)| outcome == "FAILED");
        if self.in_failures || is_failure || is_result && !line.contains(" 0 passed; 0 failed") {
            say(line);
        }
        Ok(line.to_owned())
    }
}
