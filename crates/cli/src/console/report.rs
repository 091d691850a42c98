//! How failures are told: `error:`, its causes indented, and a hint.

use std::fmt::Write as _;
use std::io::Write as _;

use forkd_api::Reason;
use forkd_client::{ApiFailure, ClientError};

use super::manner;
use crate::exit::Failure;

/// A failure whose remedy is known.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Hinted {
    message: String,
    hint: String,
    failure: Failure,
}

impl Hinted {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), failure: Failure::Other }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { failure: Failure::Usage, ..Self::new(message, hint) }
    }

    /// No daemon answers.
    pub(crate) fn unreachable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { failure: Failure::Unreachable, ..Self::new(message, hint) }
    }
}

/// Tells of a failure, and gives what its exit code depends on.
pub(crate) fn failure(error: &anyhow::Error) -> Failure {
    let text = text(error, manner::stderr_has_colour());
    // Nobody is left to tell when standard error is closed.
    std::io::stderr().write_all(text.as_bytes()).ok();
    kind_of(error)
}

/// Something that a person should know, though it is no failure.
pub(crate) fn note(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

/// Something that may be left out.
pub(crate) fn remark(text: &str) {
    if !manner::is_quiet() {
        note(text);
    }
}

fn text(error: &anyhow::Error, colour: bool) -> String {
    let (red, cyan, reset) =
        if colour { ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") } else { ("", "", "") };
    let mut text = format!("{red}error:{reset} {}\n", printable(&error.to_string()));
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // A transparent layer repeats the one below it.
        if cause != said {
            writeln!(text, "  caused by: {}", printable(&cause)).ok();
        }
        said = cause;
    }
    if let Some(hint) = hint_of(error) {
        writeln!(text, "\n{cyan}hint:{reset} {}", printable(&hint)).ok();
    }
    text
}

/// `text` without control characters: parts of an error may come from a guest, which must not be
/// able to steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '\n' | '\t' => letter,
            letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
            letter => letter,
        })
        .collect()
}

/// `text` as a part of one line.
pub(crate) fn printable_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// What to do about a failure, if anything of it says so.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.hint.clone());
        }
        match cause.downcast_ref::<ClientError>()? {
            ClientError::Api(failure) => Some(failure.hint.clone()),
            ClientError::Access { .. } => Some("check FORKD_TOKEN and --ca-cert".to_owned()),
            ClientError::Unreachable { .. } => {
                Some("start a daemon there with `forkd serve`".to_owned())
            }
            ClientError::Broken { .. } => {
                Some("the daemon may have stopped; its log says why".to_owned())
            }
            ClientError::NotUnderstood { .. } => {
                Some("use the same version of forkd here and for the daemon".to_owned())
            }
        }
    })
}

fn kind_of(error: &anyhow::Error) -> Failure {
    let found = error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.failure);
        }
        Some(match cause.downcast_ref::<ClientError>()? {
            ClientError::Unreachable { .. } => Failure::Unreachable,
            ClientError::Api(ApiFailure { reason: Some(reason), .. }) => match reason {
                Reason::ProgramNotFound => Failure::NotFound,
                Reason::ProgramNotExecutable => Failure::NotExecutable,
            },
            _ => Failure::Other,
        })
    });
    found.unwrap_or(Failure::Other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn api_failure(reason: Option<Reason>) -> anyhow::Error {
        let failure = ApiFailure {
            status: 409,
            code: "tag_taken".to_owned(),
            message: "the tag `py` is taken".to_owned(),
            hint: "choose another".to_owned(),
            reason,
        };
        ClientError::Api(failure).into()
    }

    #[test]
    fn an_error_has_causes_indented_and_then_a_hint() {
        let error = Err::<(), _>(api_failure(None)).context("build `py`").unwrap_err();
        assert_eq!(
            text(&error, false),
            "error: build `py`\n  caused by: the tag `py` is taken\n\nhint: choose another\n"
        );
        assert!(text(&error, true).contains("\x1b[1;31merror:"));
    }

    #[test]
    fn text_of_a_guest_cannot_steer_the_terminal() {
        let error = anyhow::anyhow!("guest says \x1b[2J\r\x07");
        assert!(!text(&error, false).contains(['\x1b', '\r', '\x07']));
    }

    #[test]
    fn each_kind_of_failure_is_told_from_the_others() {
        let of_reason = |reason| kind_of(&api_failure(Some(reason)).context("start it"));
        assert_eq!(of_reason(Reason::ProgramNotFound), Failure::NotFound);
        assert_eq!(of_reason(Reason::ProgramNotExecutable), Failure::NotExecutable);
        assert_eq!(kind_of(&api_failure(None)), Failure::Other);
        assert_eq!(kind_of(&anyhow::anyhow!("x")), Failure::Other);
        assert_eq!(kind_of(&Hinted::usage("a", "b").into()), Failure::Usage);
        assert_eq!(kind_of(&Hinted::unreachable("a", "b").into()), Failure::Unreachable);
    }
}
