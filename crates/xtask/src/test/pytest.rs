//! Reading what pytest prints: its words told as those of Rust's test harness. Pure.

/// A line as Rust's harness would have said it; others stay.
pub(super) fn translated(line: &str) -> String {
    let bare = line.trim_matches('=').trim();
    if line.starts_with("===") && bare == "FAILURES" {
        return "failures:".to_owned();
    }
    if line.starts_with("___") && line.ends_with("___") {
        return format!("---- {} ----", line.trim_matches('_').trim());
    }
    if line.starts_with("===")
        && let Some(result) = result(bare)
    {
        return result;
    }
    test(line).unwrap_or_else(|| line.to_owned())
}

/// `path::name WORD [ 12%]`.
fn test(line: &str) -> Option<String> {
    let (rest, percent) = line.rsplit_once(" [")?;
    percent.strip_suffix("%]")?;
    let (name, word) = rest.trim_end().rsplit_once(' ')?;
    let outcome = match word {
        "PASSED" | "XFAIL" => "ok",
        "FAILED" | "ERROR" | "XPASS" => "FAILED",
        "SKIPPED" => "ignored",
        _ => return None,
    };
    Some(format!("test {name} ... {outcome}"))
}

/// `3 failed, 190 passed, 1 skipped in 0.80s`.
fn result(text: &str) -> Option<String> {
    let (counts, _) = text.rsplit_once(" in ")?;
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for part in counts.split(", ") {
        let (number, word) = part.split_once(' ')?;
        let number: usize = number.parse().ok()?;
        match word {
            "passed" => passed += number,
            "failed" | "error" | "errors" => failed += number,
            "skipped" => ignored += number,
            _ => {}
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    Some(format!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored"))
}

#[cfg(test)]
mod tests {
    use super::super::libtest::Counts;
    use super::*;

    #[test]
    fn what_pytest_says_is_counted() {
        let mut counts = Counts::default();
        for line in [
            "tests/pure/test_a.py::test_it PASSED                  [ 50%]",
            "tests/pure/test_a.py::test_x[a b-GET /v1] FAILED      [100%]",
            "tests/pure/test_a.py::test_y SKIPPED (no wish) [100%]",
            "=========== FAILURES ===========",
            "==== 2 failed, 190 passed, 1 skipped, 1 error in 0.80s ====",
        ] {
            counts.read_line(&translated(line));
        }
        assert_eq!((counts.passed, counts.failed, counts.ignored), (190, 3, 1));
        assert_eq!(counts.failures, ["tests/pure/test_a.py::test_x[a b-GET /v1]"]);
    }

    #[test]
    fn failures_are_shown_from_their_heading_on_and_other_lines_stay() {
        assert_eq!(translated("=== FAILURES ==="), "failures:");
        assert_eq!(translated("____ test_it[a b] ____"), "---- test_it[a b] ----");
        assert_eq!(translated("_ _ _ _"), "_ _ _ _");
        assert_eq!(translated("E   assert 1 == 2"), "E   assert 1 == 2");
        assert_eq!(translated("=== no tests ran in 0.01s ==="), "=== no tests ran in 0.01s ===");
    }
}
