//! Lengths of files and lines.

use super::finding::Finding;
use super::source::{Line, block_end};

/// Without the test module.
const FILE_LINES: usize = 600;

const LINE_COLUMNS: usize = 100;

/// Checks one Rust file.
pub(super) fn check(path: &str, text: &str, lines: &[Line]) -> Vec<Finding> {
    let finding =
        |index: usize, message| Finding { file: path.to_owned(), line: index + 1, message };
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS && !line.contains("://") {
            let message = format!("line has {columns} columns, at most {LINE_COLUMNS}");
            findings.push(finding(index, message));
        }
    }
    let tests = test_module(lines);
    let own_lines = lines.len() - tests.as_ref().map_or(0, |tests| tests.end - tests.start);
    if own_lines > FILE_LINES && !is_test_file(path) {
        let message = format!("file has {own_lines} lines without tests, at most {FILE_LINES}");
        findings.push(finding(0, message));
    }
    findings
}

/// Whether the whole file is tests.
fn is_test_file(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// The lines of `#[cfg(test)] mod ...`.
fn test_module(lines: &[Line]) -> Option<std::ops::Range<usize>> {
    let start = lines.iter().position(|line| line.code.trim() == "#[cfg(test)]")?;
    let after = lines.get(start + 1..)?;
    let is_attribute = |line: &&Line| line.code.trim_start().starts_with("#[");
    let module = start + 1 + after.iter().take_while(is_attribute).count();
    let is_module = lines.get(module)?.code.split_whitespace().any(|word| word == "mod");
    is_module.then_some(start..block_end(lines, module)? + 1)
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text, &parse(text)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn the_file_length_does_not_count_the_tests() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(50));
        assert!(messages("a.rs", &("// x\n".repeat(600) + &tests)).is_empty());
        assert_eq!(
            messages("a.rs", &("// x\n".repeat(601) + &tests)),
            ["file has 601 lines without tests, at most 600"]
        );
    }

    #[test]
    fn a_line_over_100_columns_is_found_unless_it_has_a_url() {
        assert!(messages("a.rs", &format!("// {}", "ü".repeat(97))).is_empty());
        assert_eq!(messages("a.rs", &format!("// {}", "x".repeat(98))).len(), 1);
        assert!(messages("a.rs", &format!("// https://{}", "x".repeat(98))).is_empty());
    }
}
