//! What can go wrong between the daemon and a guest agent.

use std::time::Duration;

/// Longest text of a guest that is kept in an error, in characters.
const REMOTE_TEXT_CHARS_MAX: usize = 4096;

/// Failure of a request to a guest agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// No answer in time. The guest may be slow, stuck or hostile.
    #[error("{what}: the guest agent did not answer within {deadline:?}")]
    Timeout {
        /// What was asked for.
        what: &'static str,
        /// How long we waited.
        deadline: Duration,
    },
    /// The connection ended; every request under way fails with this.
    #[error("the connection to the guest agent is closed: {reason}")]
    Closed {
        /// Why, as far as known.
        reason: String,
    },
    /// The agent broke the protocol.
    #[error("{what}: the guest agent broke the protocol: {reason}")]
    Protocol {
        /// What was asked for.
        what: &'static str,
        /// How.
        reason: String,
    },
    /// The agent refused or failed. Both texts come from the guest: show them, trust them not.
    #[error("the guest agent reports {code}: {message}")]
    Remote {
        /// One of `forkd_protocol::code`, if the agent is honest.
        code: String,
        /// For people.
        message: String,
    },
    /// A program that the image runs in every child has failed. Its name comes from the guest.
    #[error(
        "the hook `{name}` in `/etc/forkd/on-fork.d/` ended with exit code {exit_code}; mend it, \
         or let its name end in `.optional` if a child may do without it"
    )]
    HookFailed {
        /// File name.
        name: String,
        /// Exit code, or 128 + signal; 124 when its time was over; 126 when it could not be run.
        exit_code: i32,
    },
    /// More output than we are willing to hold. The program was killed.
    #[error("the output is larger than {limit} bytes")]
    OutputTooLarge {
        /// Standard output and standard error together, in bytes.
        limit: u64,
    },
    /// The file has more than was asked for.
    #[error("the file is larger than {limit} bytes; read it piece by piece, with a larger limit")]
    FileTooLarge {
        /// Its size may be so many bytes.
        limit: u64,
    },
    /// More output of one guest than we are willing to hold, all its requests together.
    #[error(
        "the outputs and files that this sandbox is asked for at the same time are larger than \
         {limit} bytes; ask for fewer at once, or follow the output of a background process"
    )]
    OutputsTooLarge {
        /// All together, in bytes.
        limit: u64,
    },
    /// The guest has not read earlier requests for so long that no more may wait for it.
    #[error("{what}: the guest agent does not read; {limit} bytes wait for it already")]
    NotReading {
        /// What was asked for.
        what: &'static str,
        /// Most bytes that may wait.
        limit: u64,
    },
    /// The request itself does not fit a frame.
    #[error("{what}: the request is larger than {limit} bytes")]
    RequestTooLarge {
        /// What was asked for.
        what: &'static str,
        /// Largest encoded request, in bytes.
        limit: u64,
    },
    /// The host gave no random numbers, without which no guest may be renewed.
    #[error("the host's random generator failed: {reason}")]
    Entropy {
        /// The system's words.
        reason: String,
    },
}

impl GuestError {
    /// An `Error` reply, its texts cut to a bounded length and freed of control characters.
    pub(super) fn remote(code: &str, message: &str) -> Self {
        let clean = |text: &str| -> String {
            text.chars()
                .take(REMOTE_TEXT_CHARS_MAX)
                .map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter })
                .collect()
        };
        let mut message = clean(message);
        if code == forkd_protocol::code::UNSUPPORTED {
            message.push_str(
                "; the guest agent is older than this daemon: build the template again for this",
            );
        }
        Self::Remote { code: clean(code), message }
    }

    pub(super) fn hook(name: &str, exit_code: i32) -> Self {
        let shown = name.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
        Self::HookFailed { name: shown.collect(), exit_code }
    }

    /// The agent answered `what` with something else than the protocol allows.
    pub(super) fn unexpected(what: &'static str, kind: &str) -> Self {
        Self::Protocol { what, reason: format!("unexpected {kind}") }
    }
}
