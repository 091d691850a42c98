//! From the lines of a Dockerfile to its instructions: comments and continuations.

use crate::Problem;

/// An instruction with all that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// Where it begins, counted from one.
    pub(super) number: usize,
    /// In capitals.
    pub(super) name: String,
    pub(super) rest: String,
}

/// Joins what is continued and drops comments, also between the parts of an instruction.
pub(super) fn logical(text: &str) -> Result<Vec<Line>, Problem> {
    let mut all = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, raw) in text.lines().enumerate() {
        let trimmed = raw.trim();
        if trimmed.starts_with('#') {
            check_directive(index + 1, trimmed, all.is_empty() && open.is_none())?;
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        let (number, mut joined) = open.take().unwrap_or((index + 1, String::new()));
        match raw.trim_end().strip_suffix('\\') {
            Some(part) => {
                joined.push_str(part);
                open = Some((number, joined));
            }
            None => {
                joined.push_str(raw);
                all.push(line(number, &joined));
            }
        }
    }
    match open {
        None => Ok(all),
        Some((number, _)) => {
            let remedy = "remove the backslash at its end";
            Err(Problem::new(number, "the instruction does not end", remedy))
        }
    }
}

fn line(number: usize, text: &str) -> Line {
    let text = text.trim();
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Line { number, name: name.to_ascii_uppercase(), rest: rest.trim().to_owned() }
}

/// `# escape` changes what all later lines mean, where it is the first thing in the file.
fn check_directive(number: usize, comment: &str, is_at_top: bool) -> Result<(), Problem> {
    let directive = comment.trim_start_matches('#').trim().to_ascii_lowercase();
    let escape = directive.strip_prefix("escape").map(str::trim_start);
    match escape.and_then(|rest| rest.strip_prefix('=')) {
        Some(escape) if is_at_top && escape.trim() != "\\" => Err(Problem::new(
            number,
            "another escape character is not supported",
            "remove the line, and end continued lines with a backslash",
        )),
        _ => Ok(()),
    }
}
