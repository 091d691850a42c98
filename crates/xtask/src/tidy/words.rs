//! Words that tell history or unfinished work: both belong into the version control system.

use super::finding::Finding;
use super::source::Line;

/// Whole words, as written.
const WORDS: [&str; 5] = ["TODO", "FIXME", "XXX", "HACK", "WIP"];

/// Phrases, in any case.
const PHRASES: [&str; 4] = ["for now,", "formerly", "in a future version", "in the old version"];

/// Followed by a number they number the work, not the thing.
const NUMBERED: [&str; 3] = ["phase", "milestone", "sprint"];

/// Files whose subject these words are.
const EXEMPT: [&str; 2] = ["CHANGELOG.md", "crates/xtask/src/tidy/words.rs"];

/// Checks the comments of a Rust file.
pub(super) fn check_rust(path: &str, lines: &[Line]) -> Vec<Finding> {
    check(path, lines.iter().map(|line| line.comment.as_str()))
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
    fn the_changelog_may_tell_history() {
        assert!(check_text("CHANGELOG.md", "formerly\n").is_empty());
        assert_eq!(check_text("docs/a.md", "formerly\n").len(), 1);
    }
}
