//! Reading what Rust's test harness prints. Pure.

/// What a tier's test programs reported.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
    /// Names of the failed tests.
    pub(super) failures: Vec<String>,
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
    fn other_output_counts_nothing() {
        assert_eq!(read("running 3 tests\n3 passed\ntest of something\n"), Counts::default());
    }
}
