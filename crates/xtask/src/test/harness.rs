//! What becomes of the output of test programs: all of it is logged, failures are shown, results
//! are counted. Each line that is shown names its tier: others run at the same time.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::libtest::{self, Counts, FailurePart};
use crate::progress::say;

/// The package with the tests of the whole.
pub(super) const SYSTEM_TESTS: &str = "forkd-system-tests";

/// What reads the output of test programs.
pub(super) struct Harness {
    tier: &'static str,
    log: File,
    pub(super) counts: Counts,
    /// Whose lines come now.
    program: String,
    /// From the harness's "failures:" to its result: what the failed tests printed.
    in_failures: bool,
    part: FailurePart,
}

impl Harness {
    pub(super) fn new(tier: &'static str, log: &Path) -> anyhow::Result<Self> {
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let log = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let (counts, program) = (Counts::default(), String::new());
        let part = FailurePart::default();
        Ok(Self { tier, log, counts, program, in_failures: false, part })
    }

    /// What was read so far does not count.
    pub(super) fn forget(&mut self) {
        self.counts = Counts::default();
        self.in_failures = false;
    }

    /// The lines of `program` follow.
    pub(super) fn begin(&mut self, program: &str) -> anyhow::Result<()> {
        program.clone_into(&mut self.program);
        self.in_failures = false;
        writeln!(self.log, "running {program}").context("write the log")
    }

    /// For the error output of a program: it goes to the log only.
    pub(super) fn errors(&self) -> anyhow::Result<Stdio> {
        Ok(self.log.try_clone().context("share the log")?.into())
    }

    /// Shows a line.
    pub(super) fn say(&self, line: &str) {
        say(&format!("{:11} {line}", self.tier));
    }

    /// Takes a line: all go to the log; failed tests and their output are shown as well. Returns it
    /// as text.
    pub(super) fn line(&mut self, bytes: &[u8]) -> anyhow::Result<String> {
        self.log.write_all(bytes).context("write the log")?;
        let text = String::from_utf8_lossy(bytes);
        let line = text.trim_end();
        self.counts.read_line(line);
        let result = line.strip_prefix("test result: ");
        self.in_failures = (self.in_failures || line == "failures:") && result.is_none();
        let is_failure = libtest::outcome(line).is_some_and(|(_, outcome)| outcome == "FAILED");
        if let Some(result) = result.filter(|result| !result.contains(" 0 passed; 0 failed")) {
            self.say(&format!("{}: {result}", self.program));
        } else if self.in_failures {
            if self.counts.read_failure(line, &mut self.part) {
                self.say(line);
            }
        } else if is_failure {
            self.say(line);
        }
        Ok(line.to_owned())
    }

    /// Runs a program of Rust tests. Tells whether it ended well.
    pub(super) fn run(&mut self, name: &str, command: &mut Command) -> anyhow::Result<bool> {
        self.begin(name)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.errors()?)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let stdout = child.stdout.take().context("the output is piped")?;
        let mut reader = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            self.line(&bytes)?;
            bytes.clear();
        }
        Ok(child.wait()?.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_output_and_errors_are_logged_and_its_results_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("deep/x.log");
        let mut harness = Harness::new("VM", &log).unwrap();
        let script = "echo 'test a ... ok'; echo aside >&2; echo 'test b ... FAILED'; \
                      echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 1";
        let well = harness.run("vm_x", Command::new("sh").args(["-c", script])).unwrap();
        assert!(!well);
        assert_eq!((harness.counts.passed, harness.counts.failed), (1, 1));
        assert_eq!(harness.counts.failures, ["b"]);
        let logged = fs::read_to_string(log).unwrap();
        let wanted = ["running vm_x\n", "aside\n", "test a ... ok\n", "1 passed; 1 failed"];
        assert!(wanted.iter().all(|line| logged.contains(line)), "{logged}");
    }
}
