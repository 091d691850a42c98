//! Programs in the guest: run and collect, or follow event by event.

use std::time::Duration;

use forkd_protocol::Reply;

use super::GuestError;
use super::budget::Collected;
use super::call::Call;

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// Program and arguments.
    pub args: Vec<String>,
    /// Added to the agent's default environment.
    pub env: Vec<(String, String)>,
    /// Working directory; the agent's default when absent.
    pub cwd: Option<String>,
    /// `USER[:GROUP]`, names of the guest or numbers; the image's user when absent.
    pub user: Option<String>,
    /// Whole standard input.
    pub stdin: Vec<u8>,
    /// After this time the program's process group is killed, and the outcome says `timed_out`.
    pub timeout: Duration,
}

impl ExecRequest {
    /// A program with an empty input and 30 s of time.
    #[must_use]
    pub fn new<T: Into<String>>(args: impl IntoIterator<Item = T>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            stdin: Vec::new(),
            timeout: Duration::from_secs(30),
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecExit {
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
}

/// All that a program wrote, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit code, or 128 + signal.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
}

/// What happens while a program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It runs, with this process id in the guest.
    Started(u32),
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// It ended; nothing follows.
    Exited(ExecExit),
}

/// A running program. Dropping it kills the program's process group.
///
/// A slow reader slows the program down; nothing is lost and nothing piles up.
pub struct ExecStream {
    call: Call,
    ended: bool,
}

impl ExecStream {
    pub(super) fn new(call: Call) -> Self {
        Self { call, ended: false }
    }

    /// The next event; `None` after [`ExecEvent::Exited`]. Safe to cancel.
    ///
    /// # Errors
    /// Any [`GuestError`]; after one, the stream is over.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, GuestError> {
        if self.ended {
            return Ok(None);
        }
        match self.call.next().await {
            Ok(Reply::Started { pid }) => Ok(Some(ExecEvent::Started(pid))),
            Ok(Reply::Stdout { data }) => Ok(Some(ExecEvent::Stdout(data))),
            Ok(Reply::Stderr { data }) => Ok(Some(ExecEvent::Stderr(data))),
            Ok(Reply::Exited { exit_code, signal, timed_out }) => {
                self.ended = true;
                self.call.finish();
                Ok(Some(ExecEvent::Exited(ExecExit { exit_code, signal, timed_out })))
            }
            Ok(other) => {
                self.ended = true;
                Err(self.call.unexpected(&other))
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    /// Sends a signal to the program's process group.
    ///
    /// # Errors
    /// [`GuestError::Closed`] when the connection is gone.
    pub fn signal(&self, signal: i32) -> Result<(), GuestError> {
        self.call.send_signal(signal)
    }

    /// Reads to the end.
    pub(super) async fn collect(mut self) -> Result<ExecOutput, GuestError> {
        let mut output = self.call.collected();
        while let Some(event) = self.next().await? {
            match event {
                ExecEvent::Started(_) => {}
                ExecEvent::Stdout(data) => output.stdout(&data)?,
                ExecEvent::Stderr(data) => output.stderr(&data)?,
                ExecEvent::Exited(ExecExit { exit_code, signal, timed_out }) => {
                    let Collected { stdout, stderr, .. } = output;
                    return Ok(ExecOutput { stdout, stderr, exit_code, signal, timed_out });
                }
            }
        }
        Err(GuestError::unexpected("exec", "end"))
    }
}
