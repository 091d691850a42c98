//! Frames: how messages are cut out of a byte stream that may start, end or break anywhere.
//!
//! One frame on the wire is `COBS(magic u8, request id u64 LE, message, crc32 u32 LE)` and a zero
//! byte. COBS removes all zero bytes from the content, so that a zero byte is always the end of a
//! frame, and only that.

/// First byte of every frame; it changes when the frame layout changes.
pub const MAGIC: u8 = 0xF1;

/// The byte that ends a frame and occurs nowhere inside one.
pub const DELIMITER: u8 = 0;

/// Largest frame before encoding (header, message and checksum), in bytes.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

const HEADER_BYTES: usize = 1 + 8;
const CRC_BYTES: usize = 4;

/// Largest frame on the wire without its delimiter: COBS adds one byte per 254, and one.
const ENCODED_BYTES_MAX: usize = FRAME_BYTES_MAX + FRAME_BYTES_MAX / 254 + 1;

/// Capacity above which the decoder gives memory back after a frame.
const KEEP_BYTES: usize = 80 * 1024;

/// A frame that arrived whole: its checksum was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The request that the message belongs to; 0 is the connection itself.
    pub request_id: u64,
    /// The encoded message.
    pub message: &'a [u8],
}

/// Why bytes of the stream were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// More than a whole frame without a delimiter, or a message too large to send.
    #[error("frame larger than {FRAME_BYTES_MAX} bytes")]
    Oversized,
    /// The bytes between two delimiters are no COBS.
    #[error("{bytes} bytes are not a frame")]
    Garbage {
        /// How many bytes were dropped.
        bytes: usize,
    },
    /// The frame's checksum does not fit its content: cut or corrupted.
    #[error("frame of {bytes} bytes has a wrong checksum")]
    Checksum {
        /// How many bytes were dropped.
        bytes: usize,
    },
    /// A good frame of another layout.
    #[error("frame layout {found:#04x} is unknown")]
    UnknownLayout {
        /// The frame's first byte.
        found: u8,
    },
}

/// Appends one frame with its delimiter to `out`.
///
/// # Errors
/// [`FrameError::Oversized`] when the message does not fit; `out` is then unchanged.
pub fn encode_frame(request_id: u64, message: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let plain_bytes = HEADER_BYTES + message.len() + CRC_BYTES;
    if plain_bytes > FRAME_BYTES_MAX {
        return Err(FrameError::Oversized);
    }
    let mut plain = Vec::with_capacity(plain_bytes);
    plain.push(MAGIC);
    plain.extend_from_slice(&request_id.to_le_bytes());
    plain.extend_from_slice(message);
    let crc = crc32fast::hash(&plain);
    plain.extend_from_slice(&crc.to_le_bytes());

    let start = out.len();
    out.resize(start + cobs::max_encoding_length(plain.len()), 0);
    let encoded_bytes = cobs::encode(&plain, &mut out[start..]);
    out.truncate(start + encoded_bytes);
    out.push(DELIMITER);
    Ok(())
}

/// Finds the frames in a byte stream, starting at any point of it.
///
/// Holds at most one encoded frame. Never panics, whatever it is fed.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    pending: Vec<u8>,
    /// The frame under way was too large: drop everything up to its delimiter.
    skipping: bool,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Consumes `bytes` and calls `sink` for every frame that they complete and for every stretch
    /// of the stream that was dropped, in stream order.
    pub fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(Result<Frame<'_>, FrameError>)) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == DELIMITER) {
            self.collect(&rest[..end], &mut sink);
            rest = &rest[end + 1..];
            self.finish(&mut sink);
        }
        self.collect(rest, &mut sink);
    }

    /// Bytes held of a frame that is not complete.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    fn collect(&mut self, bytes: &[u8], sink: &mut impl FnMut(Result<Frame<'_>, FrameError>)) {
        if self.skipping {
            return;
        }
        if self.pending.len() + bytes.len() > ENCODED_BYTES_MAX {
            self.skipping = true;
            self.pending = Vec::new();
            sink(Err(FrameError::Oversized));
            return;
        }
        self.pending.extend_from_slice(bytes);
    }

    fn finish(&mut self, sink: &mut impl FnMut(Result<Frame<'_>, FrameError>)) {
        if std::mem::take(&mut self.skipping) || self.pending.is_empty() {
            return;
        }
        sink(parse(&mut self.pending));
        self.pending.clear();
        if self.pending.capacity() > KEEP_BYTES {
            self.pending = Vec::new();
        }
    }
}

fn parse(encoded: &mut [u8]) -> Result<Frame<'_>, FrameError> {
    let bytes = encoded.len();
    let plain_bytes = cobs::decode_in_place(encoded).map_err(|_| FrameError::Garbage { bytes })?;
    if plain_bytes > FRAME_BYTES_MAX {
        return Err(FrameError::Oversized);
    }
    let plain = &encoded[..plain_bytes];
    let (content, crc) =
        plain.split_last_chunk::<CRC_BYTES>().ok_or(FrameError::Garbage { bytes })?;
    if crc32fast::hash(content) != u32::from_le_bytes(*crc) {
        return Err(FrameError::Checksum { bytes });
    }
    let (&magic, rest) = content.split_first().ok_or(FrameError::Garbage { bytes })?;
    if magic != MAGIC {
        return Err(FrameError::UnknownLayout { found: magic });
    }
    let (id, message) = rest.split_first_chunk::<8>().ok_or(FrameError::Garbage { bytes })?;
    Ok(Frame { request_id: u64::from_le_bytes(*id), message })
}
