//! Rust source by line, code and comments apart, with the content of literals blanked: enough to
//! count braces and to look for words without being misled by a string.

/// One line of source.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Line {
    /// The code, without comments; characters inside literals are spaces.
    pub(super) code: String,
    /// The text of the comments on the line, documentation included.
    pub(super) comment: String,
}

enum State {
    Code,
    LineComment,
    /// Nested this deep.
    BlockComment(usize),
    Text,
    /// Ends at a quote followed by this many `#`.
    RawText(usize),
}

/// Splits source into lines.
pub(super) fn parse(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut state = State::Code;
    for line in text.lines() {
        let (parsed, next) = parse_line(line, state);
        lines.push(parsed);
        state = match next {
            State::LineComment => State::Code,
            other => other,
        };
    }
    lines
}

fn parse_line(text: &str, mut state: State) -> (Line, State) {
    let characters: Vec<char> = text.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\0');
    let mut line = Line::default();
    let mut index = 0;
    while index < characters.len() {
        let (current, next) = (at(index), at(index + 1));
        let mut taken = 1;
        match &mut state {
            State::Code => match (current, next) {
                ('/', '/') => state = State::LineComment,
                ('/', '*') => {
                    state = State::BlockComment(1);
                    taken = 2;
                }
                ('"', _) => {
                    line.code.push(current);
                    state = State::Text;
                }
                ('r', '"' | '#') if !ends_in_word(&line.code) => {
                    let hashes = hashes_from(&characters, index + 1);
                    if at(index + 1 + hashes) == '"' {
                        state = State::RawText(hashes);
                        taken = hashes + 2;
                    }
                    line.code.push(current);
                }
                ('\'', _) => {
                    taken = character_literal(&characters, index);
                    line.code.push(current);
                }
                _ => line.code.push(current),
            },
            State::LineComment => line.comment.push(current),
            State::BlockComment(depth) => match (current, next) {
                ('*', '/') if *depth == 1 => {
                    state = State::Code;
                    taken = 2;
                }
                ('*', '/') => {
                    *depth -= 1;
                    taken = 2;
                }
                ('/', '*') => {
                    *depth += 1;
                    taken = 2;
                }
                _ => line.comment.push(current),
            },
            State::Text => match current {
                '\\' => taken = 2,
                '"' => {
                    line.code.push(current);
                    state = State::Code;
                }
                _ => line.code.push(' '),
            },
            State::RawText(hashes) => {
                if current == '"' && hashes_from(&characters, index + 1) >= *hashes {
                    taken = *hashes + 1;
                    state = State::Code;
                } else {
                    line.code.push(' ');
                }
            }
        }
        index += taken;
    }
    (line, state)
}

/// Whether an `r` after this code belongs to a name. `br"` and `cr"` start raw text as well.
fn ends_in_word(code: &str) -> bool {
    let mut reversed = code.chars().rev();
    match reversed.next() {
        Some('b' | 'c') => reversed.next().is_some_and(|c| c.is_alphanumeric() || c == '_'),
        Some(c) => c.is_alphanumeric() || c == '_',
        None => false,
    }
}

fn hashes_from(characters: &[char], start: usize) -> usize {
    characters.iter().skip(start).take_while(|&&character| character == '#').count()
}

/// How many characters from a `'` belong to a character literal; 1 if it starts a lifetime.
fn character_literal(characters: &[char], start: usize) -> usize {
    let rest = characters.get(start + 1..).unwrap_or_default();
    match rest {
        // The character after the backslash may itself be a quote.
        ['\\', _, after @ ..] => {
            after.iter().position(|&character| character == '\'').map_or(1, |end| end + 4)
        }
        [_, '\'', ..] => 3,
        _ => 1,
    }
}

/// The index of the line on which the first block that opens at or after `start` closes; `start`'s
/// own end if the item has no block. None if the source ends before.
pub(super) fn block_end(lines: &[Line], start: usize) -> Option<usize> {
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (index, line) in lines.iter().enumerate().skip(start) {
        for character in line.code.chars() {
            match character {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                '{' => braces += 1,
                '}' if braces == 1 && brackets == 0 => return Some(index),
                '}' => braces = braces.saturating_sub(1),
                ';' if braces == 0 && brackets == 0 => return Some(index),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        parse(text).into_iter().map(|line| line.code).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn braces_in_literals_and_comments_are_not_code() {
        for text in [
            "let a = \"{\";",
            "let a = r#\"\" { \"#;",
            "let a = br\"{\\\";",
            "let a = '{';",
            "let a = '\\''; // {",
            "let a = \"\\\"{\"; /* { /* { */ { */",
        ] {
            assert!(!code(text).contains('{'), "{text}: {}", code(text));
            assert!(code(text).ends_with(';') || code(text).ends_with("; "), "{text}");
        }
    }

    #[test]
    fn lifetimes_and_names_that_end_in_r_do_not_start_literals() {
        assert_eq!(code("fn f<'a>(x: &'a str) { y }"), "fn f<'a>(x: &'a str) { y }");
        assert_eq!(code("for r in var { }"), "for r in var { }");
    }

    #[test]
    fn text_over_several_lines_stays_text() {
        assert_eq!(code("let a = r\"\n}\n\";\n}"), "let a = r\n \n;\n}");
    }

    #[test]
    fn comments_are_kept_apart() {
        let lines = parse("let a = \"// no\"; // yes\n/// doc");
        assert_eq!(lines[0].comment.trim_start_matches('/').trim(), "yes");
        assert_eq!(lines[1].comment.trim_start_matches('/').trim(), "doc");
    }

    #[test]
    fn a_block_ends_where_its_own_brace_closes() {
        let lines = parse("fn f(a: [u8; 2])\nwhere\n    A: B,\n{\n    if x { y }\n}\nfn g() {}");
        assert_eq!(block_end(&lines, 0), Some(5));
        assert_eq!(block_end(&lines, 6), Some(6));
        assert_eq!(block_end(&parse("fn f(&self) -> u8;\n}"), 0), Some(0));
        assert_eq!(block_end(&parse("fn f() {"), 0), None);
    }
}
