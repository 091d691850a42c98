//! Messages to frames and back.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::frame::{FrameError, encode_frame};
use crate::reply::Reply;
use crate::request::Request;

/// Deepest nesting that is read. Our messages need six levels; the rest is room for fields of newer
/// senders. Without a bound a frame of nothing but nesting would exhaust the stack.
const NESTING_MAX: usize = 32;

/// Why a whole frame's message was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Well-formed, but of a kind that this build does not know: its sender is newer.
    #[error("message kind {kind:?} is unknown")]
    UnknownKind {
        /// The kind, cut to a readable length.
        kind: String,
    },
    /// Not a message.
    #[error("malformed message: {reason}")]
    Malformed {
        /// What was wrong first.
        reason: String,
    },
}

/// Appends `request` as a frame to `out`.
///
/// # Errors
/// [`FrameError::Oversized`] when it does not fit a frame; `out` is then unchanged.
pub fn encode_request(id: u64, request: &Request, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode(id, request, out)
}

/// Appends `reply` as a frame to `out`.
///
/// # Errors
/// [`FrameError::Oversized`] when it does not fit a frame; `out` is then unchanged.
pub fn encode_reply(id: u64, reply: &Reply, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode(id, reply, out)
}

/// Reads a request from a frame's message.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_request(message: &[u8]) -> Result<Request, DecodeError> {
    decode(message, Request::KINDS)
}

/// Reads a reply from a frame's message.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_reply(message: &[u8]) -> Result<Reply, DecodeError> {
    decode(message, Reply::KINDS)
}

fn encode(id: u64, message: &impl Serialize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    // Writing to memory does not fail, and every message type can be serialised.
    let bytes = rmp_serde::to_vec_named(message).map_err(|_| FrameError::Oversized)?;
    encode_frame(id, &bytes, out)
}

fn decode<T: DeserializeOwned>(message: &[u8], kinds: &[&str]) -> Result<T, DecodeError> {
    match read::<T>(message) {
        Ok(value) => Ok(value),
        Err(error) => match read::<Kind>(message) {
            Ok(Kind(kind)) if !kinds.contains(&kind.as_str()) => {
                Err(DecodeError::UnknownKind { kind: shorten(&kind) })
            }
            _ => Err(DecodeError::Malformed { reason: shorten(&error.to_string()) }),
        },
    }
}

fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(message);
    deserializer.set_max_depth(NESTING_MAX);
    T::deserialize(&mut deserializer)
}

fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}

/// The kind of a message whose fields we cannot read: the only key of a map, or a bare word.
struct Kind(String);

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;
        impl<'de> Visitor<'de> for KindVisitor {
            type Value = Kind;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a message")
            }
            fn visit_str<E>(self, word: &str) -> Result<Kind, E> {
                Ok(Kind(word.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                let kind = map
                    .next_key::<String>()?
                    .ok_or_else(|| serde::de::Error::custom("empty message"))?;
                map.next_value::<IgnoredAny>()?;
                Ok(Kind(kind))
            }
        }
        deserializer.deserialize_any(KindVisitor)
    }
}
