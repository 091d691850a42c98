//! Exit codes, all of them.

use std::process::ExitCode;

/// How the program ends. Verbs that run a program in a sandbox pass its exit code through instead;
/// one that is ended by a signal ends with 128 and the signal's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All that was asked for is done.
    Ok = 0,
    /// The request failed, or a check of `doctor` did.
    Error = 1,
    /// The command line was not understood; clap ends with the same code.
    Usage = 2,
    /// No daemon answers.
    Unreachable = 3,
    /// A program in a sandbox ran out of time, as with `timeout(1)`.
    TimedOut = 124,
    /// Nobody reads the output of a program in a sandbox any more, as with SIGPIPE.
    Unread = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The exit code of a program in a sandbox. What does not fit into a byte is still no success.
pub(crate) fn of_program(code: i32) -> ExitCode {
    u8::try_from(code).map_or(Exit::Error.into(), ExitCode::from)
}
