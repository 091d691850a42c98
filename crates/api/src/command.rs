//! Running programs and Python code in a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_types::limit;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{FieldError, check_program, within};

/// The header that says how many bytes of a console are missing before those in the body.
pub const MISSING_BYTES_HEADER: &str = "x-forkd-missing-bytes";

/// Runs a program and collects what it writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// Program and arguments; no shell is involved.
    pub args: Vec<String>,
    /// After this time, in seconds, the program is killed and the answer says `timed_out`.
    #[serde(default = "exec_timeout_default")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: u64,
    /// Added to the default environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// As whom it runs: `USER` or `USER:GROUP`, names of the sandbox or numbers. Without it, the
    /// user that the image names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whole standard input; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Whole standard input as base64, for bytes that are not text; excludes `stdin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
}

const fn exec_timeout_default() -> u64 {
    limit::EXEC_TIMEOUT_DEFAULT.as_secs()
}

/// The fields of an exec request that need parsing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedExec {
    /// Time limit.
    pub timeout: Duration,
    /// Standard input.
    pub stdin: Vec<u8>,
}

impl ExecRequest {
    /// Runs `args` with the defaults.
    #[must_use]
    pub fn new<T: Into<String>>(args: impl IntoIterator<Item = T>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            timeout_secs: exec_timeout_default(),
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: None,
            stdin_base64: None,
        }
    }

    /// The parsed fields, when all are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<CheckedExec, FieldError> {
        check_program(&self.args, &self.env, self.cwd.as_deref(), self.user.as_deref())?;
        let stdin = self.stdin_bytes()?;
        Ok(CheckedExec { timeout: timeout(self.timeout_secs)?, stdin })
    }

    fn stdin_bytes(&self) -> Result<Vec<u8>, FieldError> {
        use base64::Engine as _;
        match (&self.stdin, &self.stdin_base64) {
            (Some(_), Some(_)) => Err(FieldError::new("stdin_base64", "excludes `stdin`")),
            (Some(text), None) => Ok(text.as_bytes().to_vec()),
            (None, Some(encoded)) => base64::engine::general_purpose::STANDARD
                .decode(encoded)
                .map_err(|_| FieldError::new("stdin_base64", "is not base64")),
            (None, None) => Ok(Vec::new()),
        }
    }
}

fn timeout(secs: u64) -> Result<Duration, FieldError> {
    within("timeout_secs", secs, 1, limit::EXEC_TIMEOUT_MAX.as_secs()).map(Duration::from_secs)
}

/// What a program wrote and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecAnswer {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// The exact bytes of standard output, present only when they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// The exact bytes of standard error, present only when they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// Runs Python code in the sandbox's persistent interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalRequest {
    /// Statements or an expression. Variables stay for the next call.
    pub code: String,
    /// After this time, in seconds, the code is interrupted.
    #[serde(default = "exec_timeout_default")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: u64,
}

impl EvalRequest {
    /// Runs `code` with the default time limit.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), timeout_secs: exec_timeout_default() }
    }

    /// The time limit, when all fields are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<Duration, FieldError> {
        timeout(self.timeout_secs)
    }
}

/// A form of a value, as its `_repr_mimebundle_`, `_repr_html_`, `_repr_png_` and so on give it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalPart {
    /// Its media type.
    pub mime: String,
    /// The text, where the type is `text/` something or ends with `json`, `xml` or `javascript`;
    /// the bytes as base64 elsewhere.
    pub data: String,
}

impl EvalPart {
    /// `data` of the type `mime` for the wire.
    #[must_use]
    pub fn of(mime: String, data: Vec<u8>) -> Self {
        use base64::Engine as _;
        let data = if is_text(&mime) {
            String::from_utf8_lossy(&data).into_owned()
        } else {
            base64::engine::general_purpose::STANDARD.encode(data)
        };
        Self { mime, data }
    }

    /// What `data` stands for; nothing when it is not what its type says.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        use base64::Engine as _;
        match is_text(&self.mime) {
            true => Some(self.data.clone().into_bytes()),
            false => base64::engine::general_purpose::STANDARD.decode(&self.data).ok(),
        }
    }
}

/// Whether what has this media type is text.
fn is_text(mime: &str) -> bool {
    let ends = |end: &&str| mime.ends_with(end);
    mime.starts_with("text/") || ["json", "xml", "javascript"].iter().any(ends)
}

/// A value that code showed: by `display`, or as a figure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalDisplay {
    /// All forms that it has, 4 MiB in all; what is larger is left out. The first is `text/plain`.
    pub parts: Vec<EvalPart>,
}

/// What Python code gave.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalAnswer {
    /// `repr` of the last expression; null when there is none or it is `None`.
    pub result: Option<String>,
    /// All forms that the last expression's value has, 4 MiB in all; what is larger is left out.
    /// The first is `text/plain`.
    #[serde(default)]
    pub parts: Vec<EvalPart>,
    /// What it showed before, in the order in which it did: at most 256 values, 16 MiB in all.
    #[serde(default)]
    pub displays: Vec<EvalDisplay>,
    /// How many values had no room in `displays`.
    #[serde(default)]
    pub displays_left_out: u32,
    /// Traceback, or what happened to the interpreter.
    pub error: Option<String>,
    /// 0 when there is no error, else 1.
    pub exit_code: i32,
    /// What was printed.
    pub stdout: String,
    /// What was printed to standard error.
    pub stderr: String,
    /// Its time was over.
    pub timed_out: bool,
    /// The interpreter ended: variables are gone.
    pub state_lost: bool,
    /// The exact bytes of standard output, present only when they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// The exact bytes of standard error, present only when they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
}

/// A sign of life from the guest agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pong {
    /// Always true.
    pub pong: bool,
    /// Since the guest's boot, in milliseconds.
    pub uptime_ms: f64,
    /// How often the agent has been greeted: once per boot and per fork on the way here.
    pub epoch: u64,
    /// Requests under way in the guest.
    pub requests_running: u32,
    /// Stretches of our stream that the agent could not read.
    pub frames_rejected: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> ExecRequest {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_default_time_limit_is_thirty_seconds() {
        let checked = parse(r#"{"args":["true"]}"#).check().unwrap();
        assert_eq!(checked.timeout, Duration::from_secs(30));
        assert_eq!(EvalRequest::new("1").check().unwrap(), Duration::from_secs(30));
    }

    #[test]
    fn standard_input_is_text_or_base64() {
        let stdin = |json: &str| parse(json).check().unwrap().stdin;
        assert_eq!(stdin(r#"{"args":["a"],"stdin":"hi"}"#), b"hi");
        assert_eq!(stdin(r#"{"args":["a"],"stdin_base64":"/w=="}"#), [0xFF]);
    }

    #[test]
    fn a_form_is_text_or_base64_by_its_type() {
        let data = |mime: &str, data: &[u8]| EvalPart::of(mime.to_owned(), data.to_vec()).data;
        assert_eq!(data("text/html", b"<b>"), "<b>");
        assert_eq!(data("image/svg+xml", b"<svg/>"), "<svg/>");
        assert_eq!(data("application/vnd.x+json", b"{}"), "{}");
        assert_eq!(data("image/png", b"\xff"), "/w==");
        assert_eq!(data("text/plain", b"\xff"), "\u{FFFD}");
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |json: &str| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"args":[]}"#), "args");
        assert_eq!(field(r#"{"args":["a\u0000"]}"#), "args");
        assert_eq!(field(r#"{"args":["a"],"timeout_secs":0}"#), "timeout_secs");
        assert_eq!(field(r#"{"args":["a"],"timeout_secs":86401}"#), "timeout_secs");
        assert_eq!(field(r#"{"args":["a"],"env":{"A=B":""}}"#), "env");
        assert_eq!(field(r#"{"args":["a"],"cwd":"\u0000"}"#), "cwd");
        assert_eq!(field(r#"{"args":["a"],"user":""}"#), "user");
        assert_eq!(field(r#"{"args":["a"],"user":"a\u0000"}"#), "user");
        assert_eq!(field(r#"{"args":["a"],"stdin":"","stdin_base64":""}"#), "stdin_base64");
        assert_eq!(field(r#"{"args":["a"],"stdin_base64":"?"}"#), "stdin_base64");
    }
}
