//! What a request about a process can end with.

use forkd_types::ProcessId;

use crate::guest::GuestError;

/// Why a request about a background process was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProcessError {
    /// The sandbox has no process of this id, or it was forgotten.
    #[error("there is no process `{id}` in this sandbox")]
    Unknown {
        /// The id.
        id: ProcessId,
    },
    /// As many processes as are allowed run already.
    #[error("{limit} processes of this sandbox run already")]
    TooMany {
        /// How many may.
        limit: usize,
    },
    /// The process runs no more.
    #[error("process `{id}` does not run any more")]
    Ended {
        /// The id.
        id: ProcessId,
    },
    /// The process was started without an input, or its input was ended.
    #[error("process `{id}` takes no input")]
    NoInput {
        /// The id.
        id: ProcessId,
    },
    /// The process has no terminal.
    #[error("process `{id}` has no terminal")]
    NoTerminal {
        /// The id.
        id: ProcessId,
    },
    /// The program has not read its earlier input.
    #[error("process `{id}` has not read its earlier input")]
    InputWaits {
        /// The id.
        id: ProcessId,
    },
    /// The output does not reach as far as the offset that is asked for.
    #[error("from: {from} is past the end of the output, which is {to}")]
    PastTheEnd {
        /// What was asked for.
        from: u64,
        /// The end.
        to: u64,
    },
    /// The guest agent's answer, or its absence.
    #[error(transparent)]
    Guest(#[from] GuestError),
}
