//! What was found not to fit together.

use std::fmt::Write;

/// Violations of one party that are listed; the others are counted.
const LISTED_MAX: usize = 8;

/// Something that memory, pipe or disk holds although it cannot at this instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// For instance `writer 0: tail of page 17 at write 4711`.
    pub(crate) at: String,
    pub(crate) expected: u64,
    pub(crate) found: u64,
}

/// All violations of one party.
#[derive(Debug, Clone, Default)]
pub(crate) struct Violations {
    pub(crate) count: u64,
    pub(crate) listed: Vec<Violation>,
}

impl Violations {
    /// Compares; `at` is asked for only when there is a violation.
    pub(crate) fn expect(&mut self, expected: u64, found: u64, at: impl FnOnce() -> String) {
        if expected != found {
            self.count += 1;
            if self.listed.len() < LISTED_MAX {
                self.listed.push(Violation { at: at(), expected, found });
            }
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.listed.extend(other.listed);
    }
}

/// The result of one check.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) seed: u64,
    /// Writes that each writer has done.
    pub(crate) writes: Vec<u64>,
    /// Messages that went through the pipe.
    pub(crate) messages: u64,
    /// Records written to disk.
    pub(crate) records: u64,
    /// The frames of all hot pages.
    pub(crate) hot_frames: Vec<u64>,
    /// The frames of the published counts.
    pub(crate) count_frames: Vec<u64>,
    pub(crate) violations: Violations,
}

impl Verdict {
    /// As JSON, in one line. No text in it needs escapes.
    pub(crate) fn to_json(&self) -> String {
        let mut text = format!(
            "{{\"ok\":{},\"seed\":{},\"writes\":{:?},\"messages\":{},\"records\":{},\
             \"hot_frames\":{:?},\"count_frames\":{:?},\"count\":{},\"violations\":[",
            self.violations.count == 0,
            self.seed,
            self.writes,
            self.messages,
            self.records,
            self.hot_frames,
            self.count_frames,
            self.violations.count,
        );
        for (number, Violation { at, expected, found }) in self.violations.listed.iter().enumerate()
        {
            let comma = if number == 0 { "" } else { "," };
            write!(text, "{comma}{{\"at\":\"{at}\",\"expected\":{expected},\"found\":{found}}}")
                .expect("a string takes any text");
        }
        text + "]}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_without_violations_is_ok_and_one_with_any_is_not() {
        let mut verdict =
            Verdict { seed: 7, writes: vec![1, 2], hot_frames: vec![8, 9], ..Verdict::default() };
        verdict.violations.expect(5, 5, || unreachable!("no violation"));
        assert_eq!(
            verdict.to_json(),
            "{\"ok\":true,\"seed\":7,\"writes\":[1, 2],\"messages\":0,\"records\":0,\
             \"hot_frames\":[8, 9],\"count_frames\":[],\"count\":0,\"violations\":[]}"
        );
        for found in 6..26 {
            verdict.violations.expect(5, found, || "page 3".to_owned());
        }
        let text = verdict.to_json();
        assert!(text.starts_with("{\"ok\":false"), "{text}");
        assert!(text.contains("\"count\":20"), "{text}");
        assert!(text.contains("{\"at\":\"page 3\",\"expected\":5,\"found\":6},{"), "{text}");
        assert_eq!(text.matches("page 3").count(), LISTED_MAX);
    }
}
