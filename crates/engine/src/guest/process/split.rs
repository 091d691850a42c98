//! Characters that are cut in two by the end of a read are put together again, in each stream.

/// How many bytes at the end are the beginning of a character whose rest is missing.
pub(super) fn incomplete_tail(bytes: &[u8]) -> usize {
    for (index, byte) in bytes.iter().rev().take(3).enumerate() {
        let length = match byte {
            0x80..=0xBF => continue,
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            _ => return 0,
        };
        return if index + 1 < length { index + 1 } else { 0 };
    }
    0
}

/// Holds the beginning of a character back until its rest comes: at most three bytes.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    held: Vec<u8>,
}

impl Splitter {
    /// What was held back and `data`, up to the end of the last whole character.
    pub(super) fn take(&mut self, data: Vec<u8>) -> Vec<u8> {
        let mut bytes = data;
        if !self.held.is_empty() {
            bytes.splice(..0, self.held.drain(..));
        }
        self.held = bytes.split_off(bytes.len() - incomplete_tail(&bytes));
        bytes
    }

    /// What was held back: its rest does not come.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    pub(super) fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_pieces_of_any_size_comes_out_as_text_and_complete() {
        let text = "a€é😀z\u{10FFFF}ü";
        for size in 1..=text.len() {
            let mut splitter = Splitter::default();
            let mut whole = String::new();
            for piece in text.as_bytes().chunks(size) {
                let taken = splitter.take(piece.to_vec());
                whole.push_str(std::str::from_utf8(&taken).unwrap());
            }
            assert_eq!(whole, text);
            assert!(!splitter.holds_back());
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_neither_lost_nor_held_for_long() {
        let bytes: Vec<u8> = (0..=255).chain([0xE2, 0x82, 0xC3, 0xC3, 0xF0, 0x80]).collect();
        for size in 1..10 {
            let mut splitter = Splitter::default();
            let mut whole = Vec::new();
            for piece in bytes.chunks(size) {
                whole.extend(splitter.take(piece.to_vec()));
                assert!(splitter.held.len() <= 3);
            }
            whole.extend(splitter.give_up());
            assert_eq!(whole, bytes);
        }
    }
}
