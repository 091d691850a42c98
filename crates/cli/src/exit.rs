//! Exit codes, all of them.
//!
//! A verb has codes of its own, or it ends with the exit code of a program in a sandbox. What forkd
//! itself has to say is then above 124, as with `timeout(1)`, `env(1)` and container engines, so
//! that a script can tell the two apart.

use std::process::ExitCode;

/// An exit code with a meaning of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All that was asked for is done.
    Ok = 0,
    /// The request failed, or a check of `doctor` did.
    Error = 1,
    /// The command line was not understood.
    Usage = 2,
    /// No daemon answers.
    Unreachable = 3,
    /// A program in a sandbox ran out of time.
    TimedOut = 124,
    /// forkd itself failed, where any smaller code is a program's.
    Failed = 125,
    /// The program is there, but cannot be executed.
    NotExecutable = 126,
    /// The program is not there.
    NotFound = 127,
    /// Nobody reads the output of a program in a sandbox any more, as with SIGPIPE.
    Unread = 141,
}

/// Why a verb failed, as far as exit codes tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Something else.
    Other,
    /// The command line was not understood.
    Usage,
    /// No daemon answers.
    Unreachable,
    /// The program cannot be executed.
    NotExecutable,
    /// The program is not there.
    NotFound,
}

/// Whose exit codes a verb has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Its own.
    Verb,
    /// Those of a program in a sandbox.
    Program,
}

/// Verbs that end with the exit code of a program.
pub(crate) const OF_PROGRAMS: [&[&str]; 6] =
    [&["run"], &["shell"], &["exec"], &["eval"], &["process", "attach"], &["process", "wait"]];

/// What the help of these verbs says of it.
pub(crate) const OF_PROGRAMS_HELP: &str = "Exit codes:\n  \
    125 forkd failed, 126 the program cannot be executed, 127 there is no such program,\n  \
    124 its time was up, 128+n signal n ended it; otherwise the program's own";

impl Codes {
    /// Those of the verb with this path.
    pub(crate) fn of(path: &[&str]) -> Self {
        if OF_PROGRAMS.contains(&path) { Self::Program } else { Self::Verb }
    }

    /// The code of a failure.
    pub(crate) const fn of_failure(self, failure: Failure) -> Exit {
        match (self, failure) {
            (Self::Program, Failure::NotFound) => Exit::NotFound,
            (Self::Program, Failure::NotExecutable) => Exit::NotExecutable,
            (Self::Program, _) => Exit::Failed,
            (Self::Verb, Failure::Usage) => Exit::Usage,
            (Self::Verb, Failure::Unreachable) => Exit::Unreachable,
            (Self::Verb, _) => Exit::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The exit code of a program in a sandbox. What does not fit into a byte is still no success.
pub(crate) fn of_program(code: i32) -> ExitCode {
    u8::try_from(code).map_or(Exit::Failed.into(), ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_ours_is_never_taken_for_a_programs_exit() {
        use Failure::{NotExecutable, NotFound, Other, Unreachable, Usage};
        for (failure, of_verb, of_program) in [
            (Other, 1, 125),
            (Usage, 2, 125),
            (Unreachable, 3, 125),
            (NotExecutable, 1, 126),
            (NotFound, 1, 127),
        ] {
            assert_eq!(Codes::Verb.of_failure(failure) as u8, of_verb, "{failure:?}");
            assert_eq!(Codes::Program.of_failure(failure) as u8, of_program, "{failure:?}");
        }
    }

    #[test]
    fn only_some_verbs_of_a_family_end_as_a_program_does() {
        assert_eq!(Codes::of(&["process", "wait"]), Codes::Program);
        assert_eq!(Codes::of(&["process", "kill"]), Codes::Verb);
        assert_eq!(Codes::of(&["process"]), Codes::Verb);
    }
}
