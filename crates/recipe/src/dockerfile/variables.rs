//! `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}` in instructions.

use std::collections::BTreeMap;

/// Longest text that may come of one instruction, in bytes.
const EXPANDED_BYTES_MAX: usize = 1 << 20;

/// Puts in the values of variables; one that has none is empty. Quotation marks stay, and nothing
/// is put in between single ones.
pub(super) fn expand(text: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    let mut quoted = None;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        rest = match letter {
            '\\' if quoted != Some('\'') => {
                let next = after.chars().next();
                // Before a dollar sign it only says that this is no variable.
                if next != Some('$') {
                    out.push('\\');
                }
                out.extend(next);
                &after[next.map_or(0, char::len_utf8)..]
            }
            '$' if quoted != Some('\'') => variable(after, values, &mut out)?,
            other => {
                if matches!(other, '\'' | '"') {
                    quoted = match quoted {
                        None => Some(other),
                        Some(mark) if mark == other => None,
                        still => still,
                    };
                }
                out.push(other);
                after
            }
        };
        if out.len() > EXPANDED_BYTES_MAX {
            return Err("its variables make it too long".to_owned());
        }
    }
    Ok(out)
}

/// Puts in the variable that `text` begins with, after the dollar sign; gives what follows.
fn variable<'a>(
    text: &'a str,
    values: &BTreeMap<String, String>,
    out: &mut String,
) -> Result<&'a str, String> {
    let value = |name: &str| values.get(name).filter(|value| !value.is_empty());
    let Some(braced) = text.strip_prefix('{') else {
        let (name, rest) = name(text);
        if name.is_empty() {
            out.push('$');
        }
        out.extend(value(name).map(String::as_str));
        return Ok(rest);
    };
    let (name, rest) = name(braced);
    let end = rest.find('}').ok_or_else(|| format!("`${{{name}` has no `}}`"))?;
    let (rule, rest) = (&rest[..end], &rest[end + 1..]);
    let found = value(name).map(String::as_str);
    let put_in = match (rule.get(..2).unwrap_or(rule), rule.get(2..).unwrap_or_default()) {
        ("", _) => found.unwrap_or_default(),
        (":-", default) if !default.contains('$') => found.unwrap_or(default),
        (":+", other) if !other.contains('$') => found.map_or("", |_| other),
        _ => return Err(format!("`${{{name}{rule}}}` is not supported")),
    };
    out.push_str(put_in);
    Ok(rest)
}

fn name(text: &str) -> (&str, &str) {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split_at(text.find(|letter| !is_part(letter)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_put_in_as_docker_does() {
        let values = [("A".to_owned(), "1".to_owned())].into();
        for (text, expected) in [
            ("$A$B${A}x", "11x"),
            ("${B:-d}${A:-d}", "d1"),
            ("${A:+y}${B:+y}", "y"),
            (r"\$A '$A' \\", r"$A '$A' \\"),
            ("5$", "5$"),
        ] {
            assert_eq!(expand(text, &values).unwrap(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "[$\\{}:A\\\\'\"é-]{0,40}") {
            expand(&text, &BTreeMap::from([("A".to_owned(), "é".to_owned())])).ok();
        }
    }
}
