//! Limits that both ends keep: one end refuses what is beyond them, the other never sends it.

use crate::FRAME_BYTES_MAX;

/// Largest payload (`data` field) of one message, in bytes.
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// Largest text that a sender puts in one field, in bytes; longer text is cut by the sender.
pub const TEXT_BYTES_MAX: usize = 128 * 1024;

/// What every payload costs beside its bytes, so that many tiny frames are bounded too.
pub const CREDIT_OVERHEAD_BYTES: u64 = 512;

/// Credit that each request gives the agent, in bytes: what one request may buffer in the daemon.
pub const OUTPUT_WINDOW_BYTES: u64 = 512 * 1024;

/// Credit that the agent gives the input of a request, in bytes: what one may buffer in the guest.
pub const INPUT_WINDOW_BYTES: u64 = 256 * 1024;

/// Most requests under way on one connection. The agent counts those of older epochs too.
pub const REQUESTS_MAX: u32 = 256;

/// From so many kept programs on, those that have ended give way to others. Those that run do not:
/// they are requests under way.
pub const KEPT_MAX: usize = 64;

/// Most kept watches. Those whose path is gone give way to others.
pub const WATCHES_KEPT_MAX: usize = 64;

/// Longest name of a kept program, in bytes.
pub const KEPT_NAME_BYTES_MAX: usize = 128;

/// Longest record of a kept program, in bytes.
pub const KEPT_RECORD_BYTES_MAX: usize = 16 * 1024;

/// Names and values of the extended attributes that are told of one file, in bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 8 * 1024;

/// Most bytes that the forms of one value may have in all, with their media types.
pub const EVAL_PARTS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most interpreters in a guest at once.
pub const CONTEXTS_MAX: usize = 16;

/// Most forms of one value.
pub const EVAL_PARTS_MAX: usize = 64;

const _: () = assert!(DATA_BYTES_MAX * 2 < FRAME_BYTES_MAX, "a payload fits a frame with room");
const _: () = assert!(TEXT_BYTES_MAX + 64 * 1024 < FRAME_BYTES_MAX, "a long text fits a frame");
