//! The byte stream from a guest: whatever it is, and however it is cut into pieces, the same frames
//! come out, nothing is held beyond one frame, and the frame after any damage is understood.

use forkd_protocol::{
    DELIMITER, FRAME_BYTES_MAX, FrameDecoder, FrameError, Reply, decode_reply, encode_frame,
    encode_reply,
};

/// A frame or a loss, kept.
type Heard = Result<(u64, Vec<u8>), FrameError>;

/// The first byte says how long the pieces are; the others are the stream.
pub fn check(input: &[u8]) {
    let Some((&piece, stream)) = input.split_first() else { return };
    let mut whole = FrameDecoder::new();
    let heard = listen(&mut whole, &[stream]);
    let pieces: Vec<&[u8]> = stream.chunks(usize::from(piece) + 1).collect();
    let mut cut = FrameDecoder::new();
    assert_eq!(heard, listen(&mut cut, &pieces), "pieces change what is heard");

    for (_, message) in heard.into_iter().flatten() {
        if let Err(error) = decode_reply(&message) {
            assert!(error.to_string().chars().count() < 300, "a guest makes long errors");
        }
    }

    let mut frame = vec![DELIMITER];
    encode_frame(7, b"after the damage", &mut frame).expect("a short frame fits");
    let last = listen(&mut whole, &[&frame]).pop();
    assert_eq!(last, Some(Ok((7, b"after the damage".to_vec()))), "the next frame is lost");
}

fn listen(decoder: &mut FrameDecoder, pieces: &[&[u8]]) -> Vec<Heard> {
    let mut heard = Vec::new();
    for piece in pieces {
        decoder.feed(piece, |found| {
            heard.push(found.map(|frame| (frame.request_id, frame.message.to_vec())));
        });
        assert!(decoder.pending_bytes() <= FRAME_BYTES_MAX + FRAME_BYTES_MAX / 128);
    }
    heard
}

/// Streams with whole, cut and damaged frames.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut stream = vec![16, DELIMITER];
    for (id, reply) in (1..).zip(crate::guest_messages::replies()) {
        encode_reply(id, &reply, &mut stream).expect("a short reply fits");
    }
    let mut long = vec![255];
    let data = (0..=255).cycle().take(3000).collect();
    encode_reply(1, &Reply::Stdout { data }, &mut long).expect("3000 bytes fit");
    let cut = stream[..stream.len() / 2].to_vec();
    vec![stream, long, cut, vec![0, 0, 0], b"\x03no frame\0at all\0".to_vec()]
}
