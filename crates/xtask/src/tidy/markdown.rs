//! Pages: one title each, and a README short enough to be read.

use super::finding::Finding;

const README_LINES: usize = 150;

/// Checks one page.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut push = |index: usize, message: String| {
        findings.push(Finding { file: path.to_owned(), line: index + 1, message });
    };
    let mut titles = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && line.starts_with("# ") {
            titles.push(index);
        }
    }
    match titles.as_slice() {
        [_] => {}
        [] => push(0, "the page has no `# ` title".to_owned()),
        [_, second, ..] => push(*second, "the page has a second `# ` title".to_owned()),
    }
    let length = text.lines().count();
    if path == "README.md" && length > README_LINES {
        push(README_LINES, format!("README has {length} lines, at most {README_LINES}"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_title_is_fine_and_comments_in_code_are_no_titles() {
        assert!(check("a.md", "# A\n\n```sh\n# comment\n```\n## B\n").is_empty());
    }

    #[test]
    fn no_title_and_a_second_title_are_found() {
        assert_eq!(check("a.md", "text\n")[0].line, 1);
        assert_eq!(check("a.md", "# A\n# B\n")[0].line, 2);
    }

    #[test]
    fn only_the_readme_has_a_length() {
        let text = format!("# A\n{}", "x\n".repeat(150));
        assert_eq!(check("README.md", &text).len(), 1);
        assert!(check("docs/a.md", &text).is_empty());
        assert!(check("README.md", &"x\n".repeat(149).replacen('x', "# A", 1)).is_empty());
    }
}
