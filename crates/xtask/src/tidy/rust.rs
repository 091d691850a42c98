//! Lengths of functions, files and lines, and the documentation that every crate starts with.

use super::Finding;
use super::source::{Line, block_end};

/// From the line with `fn` to the closing brace.
const FUNCTION_LINES: usize = 70;

/// Without the test module.
const FILE_LINES: usize = 600;

const LINE_COLUMNS: usize = 100;

/// Words that may stand before `fn`.
const QUALIFIERS: [&str; 7] = ["async", "const", "default", "extern", "pub", "safe", "unsafe"];

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
    let is_crate_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    if is_crate_root && !text.starts_with("//!") {
        findings.push(finding(0, "a crate starts with `//!` documentation".to_owned()));
    }
    let tests = test_module(lines);
    let own_lines = lines.len() - tests.as_ref().map_or(0, |tests| tests.end - tests.start);
    if own_lines > FILE_LINES && !is_test_file(path) {
        let message = format!("file has {own_lines} lines without tests, at most {FILE_LINES}");
        findings.push(finding(0, message));
    }
    if is_test_file(path) {
        return findings;
    }
    for (index, line) in lines.iter().enumerate() {
        if tests.as_ref().is_some_and(|tests| tests.contains(&index)) {
            continue;
        }
        let Some(name) = function_name(&line.code) else { continue };
        let Some(end) = block_end(lines, index) else { continue };
        let length = end - index + 1;
        if length > FUNCTION_LINES {
            let message = format!("function {name} has {length} lines, at most {FUNCTION_LINES}");
            findings.push(finding(index, message));
        }
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

/// The name of the function that this line declares.
fn function_name(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace();
    loop {
        let word = words.next()?;
        if word == "fn" {
            let name = words.next()?;
            return name.split(['(', '<']).next();
        }
        // `pub(crate)` and the quotes of `extern "C"`, whose content is blanked.
        let plain = word.split('(').next().unwrap_or(word);
        if !QUALIFIERS.contains(&plain) && !word.starts_with('"') && !word.ends_with('"') {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text, &parse(text)).into_iter().map(|finding| finding.message).collect()
    }

    fn function(lines: usize) -> String {
        format!("pub(crate) async fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_70_lines_is_fine_and_of_71_is_not() {
        assert!(messages("a.rs", &function(70)).is_empty());
        assert_eq!(messages("a.rs", &function(71)), ["function long has 71 lines, at most 70"]);
    }

    #[test]
    fn long_functions_in_tests_are_fine() {
        let text = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(90));
        assert!(messages("a.rs", &text).is_empty());
        assert!(messages("crates/x/tests/kernel_y.rs", &function(90)).is_empty());
    }

    #[test]
    fn a_long_function_after_the_tests_is_found() {
        let text = format!("#[cfg(test)]\nmod tests {{}}\n{}", function(71));
        assert_eq!(messages("a.rs", &text).len(), 1);
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

    #[test]
    fn a_crate_without_documentation_is_found() {
        assert!(messages("crates/x/src/lib.rs", "//! For this.\n").is_empty());
        assert_eq!(messages("crates/x/src/lib.rs", "mod a;\n").len(), 1);
        assert!(messages("crates/x/src/other.rs", "mod a;\n").is_empty());
    }

    #[test]
    fn functions_are_recognised_with_every_qualifier_and_not_in_types() {
        let name = |text: &str| {
            parse(text).first().and_then(|line| function_name(&line.code).map(str::to_owned))
        };
        assert_eq!(name("    pub unsafe extern \"C\" fn hook(a: u8) {").unwrap(), "hook");
        assert_eq!(name("const fn f<T>() {").unwrap(), "f");
        assert_eq!(name("let f: fn (u8) = g;"), None);
        assert_eq!(name("/// a fn here"), None);
    }
}
