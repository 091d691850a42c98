//! The daemon's side of the conversation with the agent in a guest.
//!
//! [`GuestAgent`] is a cheap handle on one connection. A reader task hands each reply to the
//! request that it belongs to; a writer task sends whole frames, one at a time, so that a caller
//! that goes away in the middle of a request never leaves half a frame behind.
//!
//! Guarantees, against any guest:
//! * Every wait has a deadline, but for what a background process or a watch tells next; the loss
//!   of the connection fails every request under way.
//! * Memory is bounded: a request buffers at most its credit window, collected output at most
//!   [`OUTPUT_BYTES_MAX`], values that code shows at most [`DISPLAYS_BYTES_MAX`], an unfinished
//!   frame at most one frame. All requests to one guest together have bounds too; see `budget`. A
//!   guest that sends more than it was allowed loses that request, not the daemon.
//! * Nothing that a guest sends reaches a request that it was not addressed to, nor one of an
//!   earlier connection: replies count only after a `Welcome` with our nonce.
//! * While a [`QuiesceGuard`] lives, not one byte is written to the VM's socket, and QEMU has read
//!   all that was written before.
//!
//! What it does not do: start, stop or judge VMs, and retry anything.

mod agent;
mod budget;
mod call;
mod cell;
mod connection;
mod content;
mod error;
mod eval;
mod exec;
mod files;
mod kept_watch;
mod parts;
mod ports;
mod process;
mod quiesce;
mod usage;

pub use agent::{Facts, FileWrite, GuestAgent, Identity, Pulse, Renewal, Renewing};
pub use call::InputPiece;
pub use cell::{Cell, CellEnd, CellError, CellEvent, CellRequest, Context};
pub use connection::LinkCounters;
pub use content::FileReader;
pub use error::GuestError;
pub use eval::{EvalOutput, EvalRequest};
pub use exec::{ExecEvent, ExecExit, ExecOutput, ExecRequest, ExecStream};
pub use files::{
    Depth, FileChange, FileContent, FileEntry, FileKind, FileLink, FileLook, FileWatch, Mounts,
    ToldChange, WatchExtent, WithEntries,
};
pub use forkd_protocol::{
    Attributes, ChangeDetail, EVAL_PARTS_BYTES_MAX, FileOwner, HookReport, OUTPUT_WINDOW_BYTES,
    REQUESTS_MAX,
};
pub use kept_watch::KeptChanges;
pub use parts::{DISPLAYS_BYTES_MAX, DISPLAYS_MAX, EvalPart};
pub use ports::ListeningPort;
pub use process::{
    Audience, OutputEvent, OutputReader, ProcessEnd, ProcessError, ProcessInput, ProcessRequest,
    ProcessTable, ProcessView, Stream, TerminalSize,
};
pub use quiesce::QuiesceGuard;
pub use usage::Usage;

/// Most bytes that a collected output (both streams together) or a file may have.
pub const OUTPUT_BYTES_MAX: u64 = forkd_types::limit::EXEC_OUTPUT_BYTES_MAX as u64;
