//! The framing of what clients send, for the search for input that breaks it.

use crate::connect::{Decoder, Envelope, HEAD_BYTES, MESSAGE_BYTES_MAX};

/// Envelopes and whether they ended in an error.
fn read(pieces: &mut dyn Iterator<Item = &[u8]>) -> (Vec<Envelope>, bool) {
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(envelope)) => found.push(envelope),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
        // What is left is part of one envelope, and that is none that is too long.
        assert!(decoder.held_bytes() < HEAD_BYTES + MESSAGE_BYTES_MAX, "more than one is held");
    }
    (found, false)
}

/// The first byte says how the others are cut.
///
/// # Panics
/// When cuts change what is read, or when something is read that did not come.
pub fn check_envelopes(input: &[u8]) {
    let Some((cut, stream)) = input.split_first() else { return };
    let whole = read(&mut std::iter::once(stream));
    let pieces = read(&mut stream.chunks(usize::from(*cut).max(1)));
    assert_eq!(whole, pieces, "cuts change what is read");
    let mut rest = stream;
    for envelope in whole.0 {
        let (head, after) = rest.split_at(HEAD_BYTES);
        let length = head[1..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (message, after) = after.split_at(length);
        let (Envelope::Message(read) | Envelope::End(read)) = envelope;
        assert_eq!(read, message, "a message is another one");
        rest = after;
    }
}
