//! The language spoken between the daemon (host) and the guest agent.
//!
//! ```text
//! byte stream:   ... 00 | COBS( magic, request id, message, crc32 ) | 00 | COBS( .. ) | 00 ...
//! message:       MessagePack map with one entry: { kind: { field: value, .. } }
//! ```
//!
//! Guarantees:
//! * A receiver can start anywhere in the stream. A VM is branched in the middle of frames, in
//!   both directions, and its child gets a new connection: what is left of a cut frame is dropped
//!   at the next zero byte and reported, and every frame after that is understood.
//! * A receiver holds at most one frame ([`FRAME_BYTES_MAX`]), whatever arrives.
//! * A corrupted frame is detected by its CRC and never taken for another message.
//! * An agent inside an old snapshot keeps understanding a newer daemon: fields are named, unknown
//!   fields are ignored, and an unknown message kind can be told from a malformed message
//!   ([`DecodeError::UnknownKind`]), so that it is answered and not punished.
//!
//! What it does not do: any I/O, any waiting, any policy. It does not authenticate: the stream is
//! private to one daemon and one guest.
//!
//! # Conversation
//!
//! The host sends a zero byte and [`Request::Hello`]; the agent answers [`Reply::Welcome`] with the
//! same nonce. Every `Hello` starts a new *epoch* in the agent: what requests of older epochs still
//! produce is discarded, which is how a child ignores the requests of its source. All further
//! requests carry an id chosen by the host; all replies carry the id of their request; id 0 is the
//! connection itself.
//!
//! A program that was started with a [`Keep`] is not lost to a new epoch: its output waits in the
//! agent, as much as [`Reply::Followed`] tells, until the host asks for it by its name. So do the
//! changes that a watch with a [`Keep`] sees; where there were too many, a [`Reply::Change`] stands
//! for those that were missed.
//!
//! # Flow control
//!
//! Payload flows only as far as the receiver allowed, in both directions, so that neither side
//! buffers without bound and a slow stream does not hold up its neighbours. The allowance is called
//! credit; a payload of n bytes consumes [`credit_cost`]`(n)` of it. The host gives its first
//! credit in the request and more with [`Request::Credit`]; the agent gives all of its credit with
//! [`Reply::Credit`].

pub mod code;
mod codec;
mod frame;
mod kinds;
mod limit;
mod part;
mod reply;
mod reply_size;
mod request;

pub use codec::{DecodeError, decode_reply, decode_request, encode_reply, encode_request};
pub use frame::{DELIMITER, FRAME_BYTES_MAX, Frame, FrameDecoder, FrameError, MAGIC, encode_frame};
pub use limit::{
    ATTRIBUTES_BYTES_MAX, CONTEXTS_MAX, CREDIT_OVERHEAD_BYTES, DATA_BYTES_MAX,
    EVAL_PARTS_BYTES_MAX, EVAL_PARTS_MAX, INPUT_WINDOW_BYTES, KEPT_MAX, KEPT_NAME_BYTES_MAX,
    KEPT_RECORD_BYTES_MAX, OUTPUT_WINDOW_BYTES, REQUESTS_MAX, TEXT_BYTES_MAX, WATCHES_KEPT_MAX,
};
pub use part::{
    Attributes, ChangeDetail, ChangedEntry, EvalContext, EvalException, FileOwner, HookReport,
    Keep, LinkTarget,
};
pub use reply::Reply;
pub use request::Request;

/// Oldest protocol version that this build understands.
pub const PROTOCOL_MIN: u32 = 1;
/// Newest protocol version that this build understands.
pub const PROTOCOL_MAX: u32 = 1;

/// Name of the virtio-serial port on which the agent listens.
pub const PORT_NAME: &str = "forkd.agent";

/// In this file of the guest the host names variables, one `NAME=value` a line, that every program
/// of the agent finds in its environment, unless its request says otherwise.
pub const GATEWAY_ENVIRONMENT: &str = "/etc/forkd/gateway.env";

/// Credit that a payload of `data_bytes` consumes.
///
/// ```
/// assert_eq!(forkd_protocol::credit_cost(1000), 1512);
/// ```
#[must_use]
pub fn credit_cost(data_bytes: usize) -> u64 {
    (data_bytes as u64).saturating_add(CREDIT_OVERHEAD_BYTES)
}
