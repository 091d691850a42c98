//! Envelopes: one byte of flags, four bytes of length, big end first, and so many bytes.

use crate::failure::{Failure, Kind};

/// Longest message of a client that is held.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Before the message.
pub(crate) const HEAD_BYTES: usize = 5;
const COMPRESSED: u8 = 1;
const LAST: u8 = 2;

/// What comes in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// A message.
    Message(Vec<u8>),
    /// The end of the stream. A client says nothing in it that matters.
    End(Vec<u8>),
}

/// `message` in an envelope.
pub(super) fn sealed(message: &[u8]) -> Vec<u8> {
    encode(0, message)
}

/// The last envelope of a stream.
pub(super) fn last(message: &[u8]) -> Vec<u8> {
    encode(LAST, message)
}

fn encode(flags: u8, message: &[u8]) -> Vec<u8> {
    // Messages that we make are of a few pieces of output.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + message.len());
    bytes.push(flags);
    bytes.extend(length.to_be_bytes());
    bytes.extend(message);
    bytes
}

/// Takes bytes as they come and gives whole envelopes. Holds one message at the most.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// More bytes have come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.held.extend(bytes);
    }

    /// The next envelope, if all of it is here.
    pub(crate) fn next(&mut self) -> Result<Option<Envelope>, Failure> {
        let wrong = |text| Failure::new(Kind::InvalidArgument, text);
        let Some((head, _)) = self.held.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [flags, length @ ..] = *head;
        if flags & COMPRESSED != 0 {
            return Err(wrong("compressed envelopes are not read"));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(wrong("the message is too long"));
        }
        let Some(message) = self.held.get(HEAD_BYTES..HEAD_BYTES + length) else {
            return Ok(None);
        };
        let message = message.to_vec();
        let envelope = match flags & LAST {
            0 => Envelope::Message(message),
            _ => Envelope::End(message),
        };
        self.held.drain(..HEAD_BYTES + length);
        Ok(Some(envelope))
    }

    /// Bytes that are held.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Whether part of an envelope is held.
    pub(crate) fn is_in_the_middle(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_of(decoder: &mut Decoder) -> Vec<Envelope> {
        std::iter::from_fn(|| decoder.next().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn messages_come_back_however_the_bytes_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..8),
            cuts in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let mut bytes: Vec<u8> = messages.iter().flat_map(|m| sealed(m)).collect();
            bytes.extend(last(b"{}"));
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                decoder.feed(piece);
                found.extend(all_of(&mut decoder));
                rest = others;
            }
            let mut wanted: Vec<_> = messages.into_iter().map(Envelope::Message).collect();
            wanted.push(Envelope::End(b"{}".to_vec()));
            prop_assert_eq!(found, wanted);
            prop_assert!(!decoder.is_in_the_middle());
        }

        #[test]
        fn no_bytes_make_it_panic_or_hold_more_than_one_message(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16),
        ) {
            let mut decoder = Decoder::default();
            for piece in pieces {
                decoder.feed(&piece);
                while let Ok(Some(_)) = decoder.next() {}
            }
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_it_is_held() {
        let mut decoder = Decoder::default();
        decoder.feed(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next().unwrap_err().kind, Kind::InvalidArgument);
    }

    #[test]
    fn what_is_compressed_is_refused() {
        let mut decoder = Decoder::default();
        decoder.feed(&[1, 0, 0, 0, 0]);
        assert!(decoder.next().is_err());
    }
}
