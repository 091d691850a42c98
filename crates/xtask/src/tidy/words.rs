//! Words that tell history or unfinished work, which belong into the version control system; and
//! names that are not the field's.

use super::finding::Finding;
use super::source::Line;

/// Whole words, as written.
const WORDS: [&str; 5] = ["TODO", "FIXME", "XXX", "HACK", "WIP"];

/// Phrases, in any case.
const PHRASES: [&str; 4] = ["for now,", "formerly", "in a future version", "in the old version"];

/// Followed by a number they number the work, not the thing.
const NUMBERED: [&str; 3] = ["phase", "milestone", "sprint"];

/// Words that no name in the code has, each with the one that it should have; see
/// `docs/glossary.md`.
const NAMES: [(&str, &str); 11] = [
    ("bell", "wake"),
    ("downtime", "pause"),
    ("flaw", "mutation"),
    ("gotcha", "hazard"),
    ("heritage", "inherited"),
    ("hypervisor", "vmm"),
    ("mourn", "reap"),
    ("mourner", "reaper"),
    ("nursery", "starting"),
    ("undertaker", "reaper"),
    ("vmstate", "device_state"),
];

/// Files whose subject these words are.
const EXEMPT: [&str; 2] = ["CHANGELOG.md", "crates/xtask/src/tidy/words.rs"];

/// Checks the comments and the names of a Rust file.
pub(super) fn check_rust(path: &str, lines: &[Line]) -> Vec<Finding> {
    let mut findings = check(path, lines.iter().map(|line| line.comment.as_str()));
    for (index, line) in lines.iter().enumerate() {
        findings.extend(banned_names(&line.code).map(|(word, better)| {
            let message = format!("no name has the word \"{word}\" here: {better}");
            Finding { file: path.to_owned(), line: index + 1, message }
        }));
    }
    findings
}

/// The banned words in the names of a line, each with what to write.
fn banned_names(code: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let words = parts(code);
    NAMES.into_iter().filter(move |(name, _)| {
        words.iter().any(|word| word == name || word.strip_suffix('s') == Some(name))
    })
}

/// The words that the names of a line consist of, in lower case.
fn parts(code: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut after_lower = false;
    for character in code.chars() {
        if !character.is_alphanumeric() || character.is_uppercase() && after_lower {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| character.is_alphanumeric()) {
            part.extend(character.to_lowercase());
        }
        after_lower = character.is_lowercase();
    }
    parts
}

/// Checks every line of another file.
pub(super) fn check_text(path: &str, text: &str) -> Vec<Finding> {
    check(path, text.lines())
}

fn check<'a>(path: &str, lines: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    if EXEMPT.contains(&path) || path.ends_with("-lock.json") || path.ends_with(".lock") {
        return Vec::new();
    }
    let found = lines.enumerate().filter_map(|(index, line)| {
        let word = banned(line)?;
        let message = format!("\"{word}\" tells history or unfinished work; say what is");
        Some(Finding { file: path.to_owned(), line: index + 1, message })
    });
    found.collect()
}

/// The first banned word of a line.
fn banned(line: &str) -> Option<String> {
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '#').collect();
    if let Some(word) = words.iter().find(|word| WORDS.contains(word)) {
        return Some((*word).to_owned());
    }
    let lower = line.to_lowercase();
    if let Some(phrase) = PHRASES.iter().find(|phrase| lower.contains(*phrase)) {
        return Some((*phrase).to_owned());
    }
    for pair in words.windows(2) {
        if NUMBERED.contains(&pair[0].to_lowercase().as_str()) && is_number(pair[1]) {
            return Some(pair.join(" "));
        }
    }
    issue_number(line)
}

/// `#` and a number as a word of its own, or after `(`: not a colour, an anchor or a heading.
fn issue_number(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().map(|word| word.trim_start_matches('('));
    words.find_map(|word| {
        let digits = word.strip_prefix('#')?.trim_end_matches([')', '.', ',', ';', ':']);
        is_number(digits).then(|| format!("#{digits}"))
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|character| character.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    #[test]
    fn history_and_unfinished_work_are_found() {
        for line in [
            "// TODO: later",
            "see (#12)",
            "fixed in #7.",
            "Phase 2 adds this",
            "This was formerly a lock",
            "XXX",
        ] {
            assert!(banned(line).is_some(), "{line}");
        }
    }

    #[test]
    fn ordinary_text_is_not() {
        for line in [
            "# Title",
            "colour #123abc",
            "link](#2-the-machine)",
            "the phases of a branch; phase two words",
            "mktemp -t x.XXXXXX",
            "autodoc TODOS",
            "`phase` 2x",
        ] {
            assert_eq!(banned(line), None, "{line}");
        }
    }

    #[test]
    fn in_rust_only_comments_count() {
        let source = "let a = \"TODO\";\n// TODO\n";
        let findings = check_rust("a.rs", &parse(source));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 2);
    }

    #[test]
    fn banned_words_are_found_in_names_of_either_case_and_not_inside_other_words() {
        let found = |code| banned_names(code).map(|(word, _)| word).collect::<Vec<_>>();
        for code in ["let late_flaw = 1;", "struct FlawProbe;", "FLAW_INTERVAL", "fn flaws()"] {
            assert_eq!(found(code), ["flaw"], "{code}");
        }
        assert_eq!(found("flawless(labelled, VmState)"), [""; 0]);
        let findings = check_rust("a.rs", &parse("// a flaw\nfn nursery() {}\n"));
        assert_eq!(findings.len(), 1, "comments are prose");
        assert!(findings[0].message.contains("starting") && findings[0].line == 2);
    }

    #[test]
    fn the_changelog_may_tell_history() {
        assert!(check_text("CHANGELOG.md", "formerly\n").is_empty());
        assert_eq!(check_text("docs/a.md", "formerly\n").len(), 1);
    }
}
