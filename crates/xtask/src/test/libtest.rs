//! Reading what Rust's test harness prints. Pure.

/// The most lines that are repeated of what a failed test said.
const COMPLAINT_LINES: usize = 12;

/// Where in the list of failures a line stands.
#[derive(Debug, Default, PartialEq)]
pub(super) enum FailurePart {
    /// The list of names.
    #[default]
    Names,
    /// What a test said, after so many lines of it.
    Said(usize),
    /// Where it panicked.
    Backtrace,
}

/// What a tier's test programs reported.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
    /// Names of the failed tests.
    pub(super) failures: Vec<String>,
    /// What the failed tests said, in short.
    pub(super) complaints: Vec<String>,
    /// Ignored tests with the reason they give.
    pub(super) ignored_tests: Vec<String>,
}

impl Counts {
    /// Takes one line of output into account.
    pub(super) fn read_line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            for part in result.split(['.', ';']) {
                let Some((number, word)) = part.trim().split_once(' ') else { continue };
                let Ok(number) = number.parse::<usize>() else { continue };
                match word {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        } else if let Some((name, outcome)) = outcome(line) {
            if outcome == "FAILED" || outcome.starts_with("failed") {
                self.failures.push(name.to_owned());
            } else if let Some(reason) = outcome.strip_prefix("ignored") {
                let reason = reason.trim_start_matches([',', ' ']);
                let reason = if reason.is_empty() { "no reason given" } else { reason };
                self.ignored_tests.push(format!("{name}: {reason}"));
            }
        }
    }

    /// Adds what another program reported.
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
        self.ignored_tests.extend(other.ignored_tests);
        self.complaints.extend(other.complaints);
    }

    /// Takes a line of the list of failures into account. Tells whether a reader wants to see it.
    pub(super) fn read_failure(&mut self, line: &str, part: &mut FailurePart) -> bool {
        if line.starts_with("---- ") {
            *part = FailurePart::Said(0);
        } else if line == "stack backtrace:" {
            *part = FailurePart::Backtrace;
        } else if line == "failures:" {
            *part = FailurePart::Names;
        }
        if let FailurePart::Said(lines) = part
            && !line.is_empty()
        {
            *lines += 1;
            if *lines <= COMPLAINT_LINES {
                self.complaints.push(line.to_owned());
            }
        }
        *part != FailurePart::Backtrace
    }

    pub(super) fn ran(&self) -> usize {
        self.passed + self.failed
    }
}

/// `test NAME ... OUTCOME`. The name itself may hold spaces (documentation tests).
pub(super) fn outcome(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("test ")?;
    let (name, outcome) = rest.rsplit_once(" ... ")?;
    Some((name, outcome.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Counts {
        let mut counts = Counts::default();
        text.lines().for_each(|line| counts.read_line(line));
        counts
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let counts = read(
            "test a ... ok\n\
             test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; \
             finished in 0.01s\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!((counts.passed, counts.failed, counts.ignored), (13, 2, 1));
        assert_eq!(counts.ran(), 15);
    }

    #[test]
    fn failed_and_ignored_tests_are_named() {
        let counts = read(
            "test branch::keeps_pages ... FAILED\n\
             test src/lib.rs - f (line 3) ... ignored, needs /dev/kvm\n\
             test b ... ignored\n",
        );
        assert_eq!(counts.failures, ["branch::keeps_pages"]);
        assert_eq!(
            counts.ignored_tests,
            ["src/lib.rs - f (line 3): needs /dev/kvm", "b: no reason given"]
        );
    }

    #[test]
    fn what_a_failed_test_said_is_kept_without_its_backtrace() {
        let (mut counts, mut part) = (Counts::default(), FailurePart::default());
        let text = "failures:\n\n---- a stdout ----\n\nthread 'a' panicked at x.rs:1:\nno space\n\
                    stack backtrace:\n   0: panic\n\n---- b stdout ----\nwrong\n\
                    failures:\n    a\n    b\n";
        let shown: Vec<_> =
            text.lines().filter(|line| counts.read_failure(line, &mut part)).collect();
        let said = ["---- a stdout ----", "thread 'a' panicked at x.rs:1:", "no space"];
        assert_eq!(counts.complaints, [&said[..], &["---- b stdout ----", "wrong"]].concat());
        assert!(shown.contains(&"    b") && !shown.contains(&"   0: panic"), "{shown:?}");
        for _ in 0..100 {
            counts.read_failure("more", &mut FailurePart::Said(COMPLAINT_LINES));
        }
        assert_eq!(counts.complaints.len(), 5, "a flood is cut");
    }

    #[test]
    fn other_output_counts_nothing() {
        assert_eq!(read("running 3 tests\n3 passed\ntest of something\n"), Counts::default());
    }
}
