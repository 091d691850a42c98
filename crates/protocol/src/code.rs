//! Words in [`Reply::Error`](crate::Reply::Error)'s `code`. A word never changes its meaning.

/// The agent does not know this kind of message, or does not speak any of these versions.
pub const UNSUPPORTED: &str = "unsupported";
/// Bytes that are no frame were dropped.
pub const BAD_FRAME: &str = "bad_frame";
/// A frame whose message is malformed.
pub const BAD_MESSAGE: &str = "bad_message";
/// A request whose fields make no sense.
pub const BAD_REQUEST: &str = "bad_request";
/// A request with the id of one under way.
pub const DUPLICATE_ID: &str = "duplicate_id";
/// Too many requests under way.
pub const BUSY: &str = "busy";
/// More input than was allowed.
pub const INPUT_OVERRUN: &str = "input_overrun";
/// The host ended the request with `Kill`.
pub const CANCELLED: &str = "cancelled";
/// No such program.
pub const EXEC_NOT_FOUND: &str = "exec_not_found";
/// The program may not be run.
pub const EXEC_DENIED: &str = "exec_denied";
/// The program could not be started for another reason.
pub const EXEC_FAILED: &str = "exec_failed";
/// The guest has no such user or group.
pub const USER_NOT_FOUND: &str = "user_not_found";
/// No such working directory.
pub const CWD_NOT_FOUND: &str = "cwd_not_found";
/// The image has no `python3`.
pub const PYTHON_MISSING: &str = "python_missing";
/// The interpreter could not be started.
pub const EVAL_FAILED: &str = "eval_failed";
/// No such interpreter, or not any more.
pub const CONTEXT_NOT_FOUND: &str = "context_not_found";
/// No program is kept under this name.
pub const NOT_KEPT: &str = "not_kept";
/// No such file or directory.
pub const FILE_NOT_FOUND: &str = "file_not_found";
/// Any other failure on a file.
pub const FILE_FAILED: &str = "file_failed";
/// Nothing listens on the port.
pub const PORT_CLOSED: &str = "port_closed";
/// Any other failure on a port.
pub const PORT_FAILED: &str = "port_failed";
/// A part of the new identity did not take effect.
pub const RENEW_FAILED: &str = "renew_failed";
/// Only an agent that is PID 1 does this.
pub const NOT_INIT: &str = "not_init";
/// The machine could not be ended.
pub const POWER_OFF_FAILED: &str = "power_off_failed";
