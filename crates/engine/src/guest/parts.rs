//! The forms of a value of Python code, put together from their pieces.

use forkd_protocol::{EVAL_PARTS_BYTES_MAX, EVAL_PARTS_MAX};

use super::GuestError;

const MIME_CHARS_MAX: usize = 100;

/// A form of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalPart {
    /// Its media type: at most 100 printable characters.
    pub mime: String,
    /// The bytes.
    pub data: Vec<u8>,
}

/// The forms that have come so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<EvalPart>,
    bytes: usize,
    /// The last one goes on.
    open: bool,
}

impl Parts {
    /// Adds a piece.
    pub(super) fn add(
        &mut self,
        mime: String,
        data: Vec<u8>,
        more: bool,
    ) -> Result<(), GuestError> {
        let broken =
            |reason: &str| Err(GuestError::Protocol { what: "eval", reason: reason.to_owned() });
        let printable = mime.bytes().all(|byte| byte.is_ascii_graphic());
        if mime.is_empty() || mime.len() > MIME_CHARS_MAX || !printable {
            return broken("a media type is none");
        }
        self.bytes += mime.len() + data.len();
        if self.bytes > EVAL_PARTS_BYTES_MAX {
            return broken("the forms of a value are too large");
        }
        let count = self.parts.len();
        match self.parts.last_mut() {
            Some(last) if self.open && last.mime == mime => last.data.extend(data),
            _ if self.open => return broken("a form of a value does not end"),
            _ if count >= EVAL_PARTS_MAX => return broken("a value has too many forms"),
            _ => self.parts.push(EvalPart { mime, data }),
        }
        self.open = more;
        Ok(())
    }

    /// Whether there is anything of it.
    pub(super) fn is_begun(&self) -> bool {
        !self.parts.is_empty()
    }

    /// All forms that are complete.
    pub(super) fn whole(mut self) -> Vec<EvalPart> {
        if self.open {
            self.parts.pop();
        }
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(parts: &mut Parts, mime: &str, bytes: usize, more: bool) -> Result<(), GuestError> {
        parts.add(mime.to_owned(), vec![7; bytes], more)
    }

    #[test]
    fn pieces_become_whole_forms_and_one_that_does_not_end_is_none() {
        let mut parts = Parts::default();
        for (mime, bytes, more) in [("a/a", 1, false), ("b/b", 2, true), ("b/b", 3, false)] {
            add(&mut parts, mime, bytes, more).unwrap();
        }
        add(&mut parts, "c/c", 1, true).unwrap();
        let part = |mime: &str, bytes| EvalPart { mime: mime.to_owned(), data: vec![7; bytes] };
        assert_eq!(parts.whole(), [part("a/a", 1), part("b/b", 5)]);
    }

    #[test]
    fn forms_are_bounded_in_size_and_number_and_have_a_type() {
        let mut parts = Parts::default();
        add(&mut parts, "a/a", EVAL_PARTS_BYTES_MAX - 3, true).unwrap();
        assert!(add(&mut parts, "a/a", 0, true).is_err());
        let mut parts = Parts::default();
        for _ in 0..EVAL_PARTS_MAX {
            add(&mut parts, "a/a", 0, false).unwrap();
        }
        assert!(add(&mut parts, "a/a", 0, false).is_err());
        let long = "x".repeat(101);
        for bad in ["", "a b", "a\n", "\u{e9}", &long] {
            assert!(add(&mut Parts::default(), bad, 0, false).is_err(), "{bad:?}");
        }
        let mut parts = Parts::default();
        add(&mut parts, "a/a", 1, true).unwrap();
        assert!(add(&mut parts, "b/b", 1, false).is_err());
    }
}
