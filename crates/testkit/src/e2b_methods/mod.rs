//! What forkd does with each public method of E2B's packages: the committed table, what is wrong
//! with it, and the page that is made of it.
//!
//! Guarantees: no finding means that the table has exactly the methods of the packages, that each
//! method said to work has returned to the session that is named for it, and that each method said
//! to be refused was refused with the words that are named, and has never returned.

#[cfg(test)]
mod page;

use std::collections::BTreeSet;

/// Client, package and name of a method.
pub type MethodKey = (String, String, String);

const TABLE: &str = include_str!("../../../../tests/cli/e2b/methods.tsv");

/// What forkd does with a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Done {
    /// A session calls it, and it returns.
    Works,
    /// It asks nobody.
    Local,
    /// By forkd, with a reason.
    Refused,
    /// Nothing answers it, or it is of no use.
    Unsupported,
}

impl Done {
    const ALL: [Self; 4] = [Self::Works, Self::Local, Self::Refused, Self::Unsupported];

    const fn word(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Local => "local",
            Self::Refused => "refused",
            Self::Unsupported => "unsupported",
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone)]
struct Line {
    key: MethodKey,
    done: Done,
    /// The session that calls it, the words that refuse it, or why nothing answers it.
    note: String,
}

/// A call that a session has made.
#[derive(Debug, Clone)]
pub struct Call {
    /// The file of the session.
    pub session: String,
    client: String,
    method: String,
    /// Empty: it has returned. Else what it raised.
    outcome: String,
}

/// Calls that a session has written down, one in each line.
#[must_use]
pub fn calls_of(session: &str, record: &str) -> Vec<Call> {
    let call = |line: &str| {
        let [client, method, outcome] = columns(line);
        Call { session: session.to_owned(), client, method, outcome }
    };
    record.lines().map(call).collect()
}

/// Methods that a package's client has listed, one in each line.
#[must_use]
pub fn listed(list: &str) -> BTreeSet<MethodKey> {
    let key = |line: &str| {
        let [client, package, method] = columns(line);
        (client, package, method)
    };
    list.lines().map(key).collect()
}

/// What is wrong with the committed table, for the clients that are listed.
#[must_use]
pub fn findings(listed: &BTreeSet<MethodKey>, calls: &[Call]) -> Vec<String> {
    findings_of(&lines_of(TABLE), listed, calls)
}

fn findings_of(table: &[Line], listed: &BTreeSet<MethodKey>, calls: &[Call]) -> Vec<String> {
    let clients: BTreeSet<&String> = listed.iter().map(|(client, ..)| client).collect();
    let lines: Vec<&Line> = table.iter().filter(|line| clients.contains(&line.key.0)).collect();
    let named: BTreeSet<&MethodKey> = lines.iter().map(|line| &line.key).collect();
    let mut findings = Vec::new();
    if named.len() < lines.len() {
        findings.push("a method has two lines".to_owned());
    }
    let missing = listed.iter().filter(|key| !named.contains(key));
    findings.extend(missing.map(|key| format!("{key:?} has no line in methods.tsv")));
    let gone = named.iter().filter(|key| !listed.contains(**key));
    findings.extend(gone.map(|key| format!("{key:?} is in methods.tsv and in no package")));
    for line in lines {
        let is_it = |call: &&Call| call.client == line.key.0 && call.method == line.key.2;
        let of_it: Vec<&Call> = calls.iter().filter(is_it).collect();
        findings.extend(wrong_with(line, &of_it).map(|what| format!("{:?} {what}", line.key)));
    }
    findings
}

/// What is wrong with a line, from the calls of its method.
fn wrong_with(line: &Line, calls: &[&Call]) -> Option<String> {
    let returned = |call: &&Call| call.outcome.is_empty();
    match line.done {
        Done::Works => {
            let mut calls = calls.iter().copied().filter(returned);
            let is_called = calls.any(|call| call.session == line.note);
            (!is_called).then(|| format!("has not returned to {}", line.note))
        }
        Done::Refused if calls.iter().any(returned) => Some("is not refused".to_owned()),
        Done::Refused => {
            let is_refused = calls.iter().any(|call| call.outcome.contains(&line.note));
            (!is_refused).then(|| format!("was not refused with \"{}\"", line.note))
        }
        Done::Local | Done::Unsupported => None,
    }
}

fn columns<const N: usize>(line: &str) -> [String; N] {
    let columns: Vec<String> = line.split('\t').map(str::to_owned).collect();
    columns.try_into().unwrap_or_else(|_| panic!("not {N} columns: {line:?}"))
}

fn lines_of(table: &str) -> Vec<Line> {
    let line = |line: &str| {
        let [client, package, method, word, note] = columns(line);
        let done = Done::ALL.into_iter().find(|done| done.word() == word);
        let done = done.unwrap_or_else(|| panic!("{word} is no word: {line}"));
        assert!(!note.is_empty(), "says nothing more: {line}");
        Line { key: (client, package, method), done, note }
    };
    table.lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "# client\npython\te2b\tA.works\tworks\ta.py\n\
                         python\te2b\tA.refused\trefused\tno such thing\n\
                         javascript\te2b\tA#other\tworks\ta.mjs\n";
    const LIST: &str = "python\te2b\tA.refused\npython\te2b\tA.works";
    const CALLS: &str = "python\tA.works\t\npython\tA.refused\tError: no such thing: x\n";

    fn found(list: &str, session: &str, record: &str) -> Vec<String> {
        findings_of(&lines_of(LINES), &listed(list), &calls_of(session, record))
    }

    #[test]
    fn a_table_that_fits_the_packages_and_the_calls_has_no_findings() {
        assert_eq!(found(LIST, "a.py", CALLS), [""; 0]);
    }

    #[test]
    fn methods_that_came_and_went_are_found() {
        let more = found(&format!("{LIST}\npython\te2b\tA.new"), "a.py", CALLS);
        assert!(more.len() == 1 && more[0].contains("A.new"), "{more:?}");
        let less = found("python\te2b\tA.works", "a.py", CALLS);
        assert!(less.len() == 1 && less[0].contains("in no package"), "{less:?}");
    }

    #[test]
    fn what_was_not_called_or_called_by_another_session_does_not_work() {
        let refused = "python\tA.refused\tError: no such thing";
        let raised = format!("{refused}\npython\tA.works\tError: gone");
        for (session, record) in [("b.py", CALLS), ("a.py", refused), ("a.py", &raised)] {
            let found = found(LIST, session, record);
            assert!(found.len() == 1 && found[0].contains("not returned"), "{found:?}");
        }
    }

    #[test]
    fn what_returned_or_failed_in_other_words_was_not_refused() {
        for outcome in ["", "Error: gone"] {
            let record = format!("python\tA.works\t\npython\tA.refused\t{outcome}");
            let found = found(LIST, "a.py", &record);
            assert!(found.len() == 1 && found[0].contains("refused"), "{found:?}");
        }
    }
}
