//! The subset of the Connect protocol that E2B's clients speak: JSON, calls that answer once, and
//! calls whose answers or questions are a stream of envelopes.
//!
//! Written here because the death of a sandbox must break the connection in the middle of an
//! answer, which a library that ends each stream in order does not offer: see
//! `docs/decisions/0017`.
//!
//! Does not do: compression, which clients never offer; protobuf.

mod answer;
mod envelope;
mod read;

#[cfg(test)]
pub(crate) use answer::EndOfStream;
pub(crate) use answer::{Broken, Empty, answered, ended, message, streamed};
pub(crate) use envelope::{Decoder, Envelope};
#[cfg(feature = "fuzzing")]
pub(crate) use envelope::{HEAD_BYTES, MESSAGE_BYTES_MAX};
pub(crate) use read::{json_of, question};
