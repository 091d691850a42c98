//! The forms of values of Python code, put together from their pieces.

use forkd_protocol::{EVAL_PARTS_BYTES_MAX, EVAL_PARTS_MAX};

use super::GuestError;

const MIME_CHARS_MAX: usize = 100;
/// Of all values that one piece of code shows, if they are kept until it ends.
pub const DISPLAYS_BYTES_MAX: usize = 16 << 20;
/// How many they may be.
pub const DISPLAYS_MAX: usize = 256;

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

    /// All forms that are complete.
    pub(super) fn whole(mut self) -> Vec<EvalPart> {
        if self.open {
            self.parts.pop();
        }
        self.parts
    }
}

/// A value that code shows, as its pieces come.
#[derive(Debug, Default)]
pub(super) struct Displays {
    /// Which one it is, and its forms so far.
    open: Option<(u32, Parts)>,
}

impl Displays {
    /// Adds a piece of the value that is shown as number `display`; with its `last` piece all forms
    /// that it has.
    pub(super) fn add(
        &mut self,
        (mime, data, more): (String, Vec<u8>, bool),
        display: u32,
        last: bool,
    ) -> Result<Option<Vec<EvalPart>>, GuestError> {
        let (shown, mut parts) = self.open.take().unwrap_or((display, Parts::default()));
        if shown != display {
            let reason = "a display does not end".to_owned();
            return Err(GuestError::Protocol { what: "eval", reason });
        }
        parts.add(mime, data, more)?;
        if last {
            return Ok(Some(parts.whole()));
        }
        self.open = Some((display, parts));
        Ok(None)
    }
}

/// All values that code has shown, as far as there is room for them.
#[derive(Debug, Default)]
pub(super) struct Shown {
    kept: Vec<Vec<EvalPart>>,
    bytes: usize,
    left_out: u32,
}

impl Shown {
    /// Adds a value, with all forms that it has.
    pub(super) fn add(&mut self, forms: Vec<EvalPart>) {
        let bytes: usize = forms.iter().map(|form| form.mime.len() + form.data.len()).sum();
        if self.bytes + bytes > DISPLAYS_BYTES_MAX || self.kept.len() >= DISPLAYS_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.bytes += bytes;
        self.kept.push(forms);
    }

    /// What was kept, and how many values were not.
    pub(super) fn whole(self) -> (Vec<Vec<EvalPart>>, u32) {
        (self.kept, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: usize) -> (String, Vec<u8>, bool) {
        ("a/a".to_owned(), vec![7; bytes], false)
    }

    #[test]
    fn a_display_ends_with_its_last_piece_and_before_the_next_begins() {
        let mut displays = Displays::default();
        assert_eq!(displays.add(piece(1), 1, false).unwrap(), None);
        assert_eq!(displays.add(piece(2), 1, true).unwrap().map(|forms| forms.len()), Some(2));
        assert_eq!(displays.add(piece(1), 2, true).unwrap().map(|forms| forms.len()), Some(1));
        assert_eq!(displays.add(piece(1), 3, false).unwrap(), None);
        assert!(displays.add(piece(1), 4, true).is_err());
    }

    #[test]
    fn what_is_shown_beyond_the_bounds_is_left_out_and_counted() {
        let value = |bytes| vec![EvalPart { mime: "a/a".to_owned(), data: vec![7; bytes] }];
        let mut shown = Shown::default();
        let large = EVAL_PARTS_BYTES_MAX - 100;
        for _ in 1..=5 {
            shown.add(value(large));
        }
        shown.add(value(1));
        let (kept, left_out) = shown.whole();
        assert_eq!((kept.len(), left_out), (5, 1), "a small one still fits");
        let mut shown = Shown::default();
        for _ in 0..300 {
            shown.add(value(1));
        }
        assert_eq!(shown.whole().1, 300 - u32::try_from(DISPLAYS_MAX).unwrap());
    }

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
