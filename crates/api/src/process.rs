//! Background processes of a sandbox, and the events of their output.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_types::{ProcessState, limit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Word;
use crate::check::{FieldError, check_program, within};

/// Starts a program that goes on in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateProcess {
    /// Program and arguments; no shell is involved.
    pub args: Vec<String>,
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
    /// Whether standard input stays open for what is sent later; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// After this time, in seconds, the program is killed; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: Option<u64>,
    /// The size of a terminal, if the program shall have one. Its input is open then, and all
    /// output is `stdout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Whether nothing of the output is dropped until it is read for the first time: the program
    /// waits meanwhile when as much is there as is kept. For a client that reads it at once.
    #[serde(default)]
    pub hold_output: bool,
}

/// How much a terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TtySize {
    /// Lines.
    #[schema(minimum = 1, maximum = 9999)]
    pub rows: u16,
    /// Characters of a line.
    #[schema(minimum = 1, maximum = 9999)]
    pub cols: u16,
}

impl TtySize {
    /// Refuses a size that no terminal has.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<(), FieldError> {
        within("rows", self.rows, 1, limit::TERMINAL_SIDE_MAX)?;
        within("cols", self.cols, 1, limit::TERMINAL_SIDE_MAX).map(drop)
    }
}

impl CreateProcess {
    /// Runs `args` without input and without a limit of time.
    #[must_use]
    pub fn new<T: Into<String>>(args: impl IntoIterator<Item = T>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: false,
            timeout_secs: None,
            tty: None,
            hold_output: false,
        }
    }

    /// The limit of time, when all fields are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<Option<Duration>, FieldError> {
        check_program(&self.args, &self.env, self.cwd.as_deref(), self.user.as_deref())?;
        self.tty.iter().try_for_each(TtySize::check)?;
        let max = limit::EXEC_TIMEOUT_MAX.as_secs();
        let check = |secs| within("timeout_secs", secs, 1, max).map(Duration::from_secs);
        self.timeout_secs.map(check).transpose()
    }
}

/// A background process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Its id here.
    pub id: String,
    /// Its id in the guest.
    pub pid: u32,
    /// Program and arguments.
    pub args: Vec<String>,
    /// How it stands; `lost` when its sandbox or the guest agent is gone.
    #[schema(value_type = ProcessState)]
    pub state: Word<ProcessState>,
    /// Exit code, or 128 + signal; present once it has exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Why it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it was started, in seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// It was started before this sandbox was forked. What it wrote until then is in the source.
    #[serde(default)]
    pub inherited: bool,
    /// Offset of the oldest byte of output that is kept. Both streams are counted together.
    pub output_from: u64,
    /// Offset that the next byte of output will have.
    pub output_to: u64,
}

/// Sends a signal to a process's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignalRequest {
    /// A name such as `TERM` or `SIGTERM`, or a number from 1 to 31.
    pub signal: SignalName,
}

/// A signal by its number or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SignalName {
    /// From 1 to 31.
    Number(i32),
    /// With or without `SIG`.
    Name(String),
}

/// Names of signals on Linux, from number 1 on.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

impl SignalRequest {
    /// The signal's number, when there is such a signal.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<i32, FieldError> {
        match &self.signal {
            SignalName::Number(number) => within("signal", *number, 1, 31),
            SignalName::Name(name) => {
                let short = name.strip_prefix("SIG").unwrap_or(name);
                (1..)
                    .zip(SIGNALS)
                    .find(|(_, known)| *known == short)
                    .map(|(number, _)| number)
                    .ok_or_else(|| {
                        FieldError::new("signal", "must be a name such as `TERM`, or 1 to 31")
                    })
            }
        }
    }
}

/// Bytes of a program in a stream of events: exactly one of the two is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputData {
    /// The bytes, which are UTF-8.
    Text(String),
    /// The bytes as base64, which are not UTF-8.
    Base64(String),
}

impl OutputData {
    /// `bytes` for the wire.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Base64(STANDARD.encode(error.as_bytes())),
        }
    }

    /// The bytes; `None` when the base64 is none.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.clone().into_bytes()),
            Self::Base64(encoded) => STANDARD.decode(encoded).ok(),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessExit {
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
}

/// An event of a process's output. On the wire the kind is the event's name and the rest its data;
/// its id is the offset after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "event", content = "data")]
pub enum OutputEvent {
    /// Bytes of standard output.
    Stdout(OutputData),
    /// Bytes of standard error.
    Stderr(OutputData),
    /// Bytes that were asked for are no longer kept.
    Lost {
        /// How many.
        bytes: u64,
    },
    /// The process has ended; nothing follows.
    Exit(ProcessExit),
    /// Its sandbox has ended, or its guest agent is lost; nothing follows.
    Gone {
        /// For people.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(json: &str) -> Result<i32, FieldError> {
        serde_json::from_str::<SignalRequest>(json).unwrap().check()
    }

    #[test]
    fn a_signal_is_a_name_or_a_number_that_exists() {
        assert_eq!(signal(r#"{"signal":"TERM"}"#), Ok(15));
        assert_eq!(signal(r#"{"signal":"SIGKILL"}"#), Ok(9));
        assert_eq!(signal(r#"{"signal":"SYS"}"#), Ok(31));
        assert_eq!(signal(r#"{"signal":2}"#), Ok(2));
        for bad in [r#""term""#, r#""""#, r#""SIG""#, "0", "32", "-1"] {
            let error = signal(&format!(r#"{{"signal":{bad}}}"#)).unwrap_err();
            assert_eq!(error.field, "signal", "{bad}");
        }
    }

    #[test]
    fn output_is_text_where_it_can_be_and_exact_bytes_elsewhere() {
        for bytes in [&b"plain \xc3\xa9\n"[..], b"", b"\xff\xfe\0binary", &[0xC3]] {
            let data = OutputData::of(bytes.to_vec());
            let is_text = matches!(data, OutputData::Text(_));
            assert_eq!(is_text, std::str::from_utf8(bytes).is_ok());
            assert_eq!(data.bytes().unwrap(), bytes);
        }
        let json = serde_json::to_string(&OutputData::of(b"hi".to_vec())).unwrap();
        assert_eq!(json, r#"{"text":"hi"}"#);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |json: &str| {
            serde_json::from_str::<CreateProcess>(json).unwrap().check().unwrap_err().field
        };
        assert_eq!(field(r#"{"args":[]}"#), "args");
        assert_eq!(field(r#"{"args":["a"],"timeout_secs":0}"#), "timeout_secs");
        assert_eq!(field(r#"{"args":["a"],"env":{"A=B":""}}"#), "env");
        assert_eq!(field(r#"{"args":["a"],"tty":{"rows":0,"cols":80}}"#), "rows");
        assert_eq!(field(r#"{"args":["a"],"tty":{"rows":24,"cols":10000}}"#), "cols");
    }
}
