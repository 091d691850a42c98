//! How a person at a terminal leaves a program that does not end: `~.` at the beginning of a line,
//! as with ssh(1).

/// What has been typed last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum After {
    /// Nothing, or the end of a line.
    #[default]
    LineEnd,
    /// `~` at the beginning of a line; it is held back.
    Tilde,
    /// Anything else.
    Other,
}

/// Looks for `~.` in what is typed.
#[derive(Debug, Default)]
pub(super) struct Escape {
    after: After,
}

/// What becomes of some keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// What the program gets.
    pub(super) bytes: Vec<u8>,
    /// Whether the person wants to leave.
    pub(super) leaves: bool,
}

impl Escape {
    /// `~~` at the beginning of a line is one `~`.
    pub(super) fn typed(&mut self, keys: &[u8]) -> Typed {
        let mut bytes = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            match (self.after, key) {
                (After::LineEnd, b'~') => {
                    self.after = After::Tilde;
                    continue;
                }
                (After::Tilde, b'.') => return Typed { bytes, leaves: true },
                (After::Tilde, b'~') => {}
                (After::Tilde, _) => bytes.push(b'~'),
                (After::LineEnd | After::Other, _) => {}
            }
            bytes.push(*key);
            self.after = match key {
                b'\r' | b'\n' => After::LineEnd,
                _ => After::Other,
            };
        }
        Typed { bytes, leaves: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program gets of these pieces, and whether the person leaves.
    fn typed(pieces: &[&str]) -> (String, bool) {
        let mut escape = Escape::default();
        let mut all = Vec::new();
        for piece in pieces {
            let Typed { bytes, leaves } = escape.typed(piece.as_bytes());
            all.extend(bytes);
            if leaves {
                return (String::from_utf8(all).unwrap(), true);
            }
        }
        (String::from_utf8(all).unwrap(), false)
    }

    #[test]
    fn tilde_and_dot_at_the_beginning_of_a_line_leave() {
        assert_eq!(typed(&["~.x"]), (String::new(), true));
        assert_eq!(typed(&["ls\r", "~", "."]), ("ls\r".into(), true));
    }

    #[test]
    fn anything_else_reaches_the_program() {
        assert_eq!(typed(&["cd ~.\r"]), ("cd ~.\r".into(), false));
        assert_eq!(typed(&["~/x\r~", "a"]), ("~/x\r~a".into(), false));
        assert_eq!(typed(&["~~."]), ("~.".into(), false), "one tilde, as if it were typed later");
        assert_eq!(typed(&["a~.\u{e9}"]), ("a~.\u{e9}".into(), false));
    }
}
