//! How failures are told: `error:`, its causes indented, and a hint.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use forkd_client::ClientError;

use crate::exit::Exit;
use crate::manner;

/// A failure whose remedy is known.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Hinted {
    message: String,
    hint: String,
    exit: Exit,
}

impl Hinted {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit: Exit::Error }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(message, hint) }
    }

    /// No daemon answers.
    pub(crate) fn unreachable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit: Exit::Unreachable, ..Self::new(message, hint) }
    }
}

/// Tells of a failure and gives its exit code.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let text = text(error, manner::stderr_has_colour());
    // Nobody is left to tell when standard error is closed.
    std::io::stderr().write_all(text.as_bytes()).ok();
    exit_of(error).into()
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

fn hint_of(error: &anyhow::Error) -> Option<String> {
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
                Some("the daemon may have ended; its log tells why".to_owned())
            }
            ClientError::NotUnderstood { .. } => {
                Some("use the command line and the daemon of the same version".to_owned())
            }
        }
    })
}

fn exit_of(error: &anyhow::Error) -> Exit {
    let found = error.chain().find_map(|cause| {
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            return Some(hinted.exit);
        }
        let client = cause.downcast_ref::<ClientError>()?;
        Some(if client.is_unreachable() { Exit::Unreachable } else { Exit::Error })
    });
    found.unwrap_or(Exit::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use forkd_client::ApiFailure;

    fn api_failure() -> anyhow::Error {
        let failure = ApiFailure {
            status: 409,
            code: "tag_taken".to_owned(),
            message: "the tag `py` is taken".to_owned(),
            hint: "choose another".to_owned(),
        };
        ClientError::Api(failure).into()
    }

    #[test]
    fn an_error_has_causes_indented_and_then_a_hint() {
        let error = Err::<(), _>(api_failure()).context("build `py`").unwrap_err();
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
    fn each_kind_of_failure_has_its_exit_code() {
        assert_eq!(exit_of(&api_failure()), Exit::Error);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Error);
        assert_eq!(exit_of(&Hinted::usage("a", "b").into()), Exit::Usage);
        assert_eq!(exit_of(&Hinted::unreachable("a", "b").into()), Exit::Unreachable);
    }
}
