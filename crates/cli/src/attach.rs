//! Our standard streams joined to a process in a sandbox.
//!
//! ```text
//! stdin  -> thread -> pieces -> POST .../stdin      (one after the other, waits for the program)
//! output <- thread <- pieces <- GET .../output      (a slow reader of ours holds the program back)
//! ```
//!
//! Guarantees: what the program wrote comes out in its order and whole, or the loss is told; a
//! stream that breaks off is taken up where it was; a signal is seen whatever else stands still.
//!
//! Does not do: start or end the process, or decide what a signal means for the sandbox.

mod escape;
mod input;
mod writer;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::bail;
use forkd_api::{OutputEvent, ProcessExit, TtySize};
use forkd_client::{Client, ClientError, OutputStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{self, Exit};
use crate::report::{self, Hinted};
use crate::signals::{Caught, Signals};
use crate::terminal::{self, Keys, Mode};

use input::Feed;
use writer::Writer;

/// How often a stream that breaks off is taken up without anything having come.
const TRIES: u32 = 5;

/// Before the first of these tries; each next one waits twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// For the rest of the output to be written when we are interrupted.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process to join.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    pub(crate) client: Client,
    pub(crate) sandbox: String,
    pub(crate) process: String,
    /// Offset of the first byte of output that is wanted; the oldest that is kept when absent.
    pub(crate) from: Option<u64>,
    pub(crate) input: Input,
    pub(crate) sink: Sink,
}

/// Where the process's output goes.
#[derive(Debug, Clone, Default)]
pub(crate) enum Sink {
    /// To our standard output and error, as it comes.
    #[default]
    Streams,
    /// Into memory.
    Memory(Arc<Mutex<Collected>>),
}

/// What a process has written.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Where the process's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nowhere.
    None,
    /// Our standard input, byte by byte to its end.
    Stream,
    /// The keys of our terminal, which is in raw mode meanwhile and tells its size.
    Keys,
}

/// Why we no longer follow a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It has ended.
    Exited(ProcessExit),
    /// Its sandbox or its guest agent is gone.
    Gone(String),
    /// We got a signal.
    Caught(Caught),
    /// Nobody reads our standard output any more.
    Unread,
    /// The person at the terminal has typed `~.` or hung up.
    Left,
}

impl Joined {
    /// Follows the process until one of the ends. To be called again after [`End::Caught`] only if
    /// there is no input.
    pub(crate) async fn follow(&mut self, signals: &mut Signals) -> anyhow::Result<End> {
        let mode = match self.input {
            Input::Keys => Some(Mode::enter(Keys::Raw)?),
            Input::None | Input::Stream => None,
        };
        let (feed, left) = Feed::start(self);
        let writer = Writer::start(self.sink.clone());
        let joined = self.clone();
        let sizes = follow_size(&joined, mode.as_ref());
        let end = {
            let output = self.output(&writer);
            tokio::pin!(output, sizes, left);
            loop {
                tokio::select! {
                    end = &mut output => break end?,
                    caught = signals.next() => break End::Caught(caught),
                    () = &mut left => break End::Left,
                    result = &mut sizes => result?,
                }
            }
        };
        drop(feed);
        // Who interrupts us does not wait for a reader that takes nothing.
        let patience = if matches!(end, End::Caught(_)) { PATIENCE } else { Duration::MAX };
        tokio::select! {
            written = writer.finish() => written?,
            _ = signals.next() => {}
            () = tokio::time::sleep(patience) => {}
        }
        if mode.is_some() && !matches!(end, End::Exited(_)) {
            // The program has left the cursor anywhere.
            writer::line_end();
        }
        Ok(end)
    }

    /// Passes on the output to its end.
    async fn output(&mut self, writer: &Writer) -> anyhow::Result<End> {
        let mut tries = 0;
        loop {
            let before = self.from;
            let broken = match self.open().await {
                Ok(mut stream) => match self.pass_on(&mut stream, writer).await? {
                    Passed::End(end) => return Ok(end),
                    Passed::BrokenOff(error) => error,
                },
                Err(error @ (ClientError::Broken { .. } | ClientError::Unreachable { .. }))
                    if tries > 0 =>
                {
                    Some(error)
                }
                Err(error) => return Err(error.into()),
            };
            tries = if self.from == before { tries + 1 } else { 1 };
            if tries > TRIES {
                match broken {
                    Some(error) => return Err(error.into()),
                    None => bail!("the daemon ends the output of the process again and again"),
                }
            }
            tokio::time::sleep(RETRY_PAUSE * 2_u32.pow(tries - 1)).await;
        }
    }

    async fn open(&self) -> Result<OutputStream, ClientError> {
        self.client.process_output(&self.sandbox, &self.process, self.from).await
    }

    async fn pass_on(
        &mut self,
        stream: &mut OutputStream,
        writer: &Writer,
    ) -> anyhow::Result<Passed> {
        loop {
            let event = match stream.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(Passed::BrokenOff(None)),
                Err(error @ ClientError::Broken { .. }) => {
                    return Ok(Passed::BrokenOff(Some(error)));
                }
                Err(error) => return Err(error.into()),
            };
            let there = match event {
                OutputEvent::Stdout(data) => writer.stdout(data.bytes().unwrap_or_default()).await,
                OutputEvent::Stderr(data) => writer.stderr(data.bytes().unwrap_or_default()).await,
                OutputEvent::Lost { bytes } => {
                    let text = format!("{bytes} bytes of output are no longer kept\n");
                    writer.stderr(text.into_bytes()).await
                }
                OutputEvent::Exit(exit) => return Ok(Passed::End(End::Exited(exit))),
                OutputEvent::Gone { reason } => return Ok(Passed::End(End::Gone(reason))),
            };
            if !there {
                return Ok(Passed::End(End::Unread));
            }
            self.from = Some(stream.offset());
        }
    }

    async fn resize(&self, size: TtySize) {
        // The program may have ended; its end is told by its output.
        self.client.resize_process(&self.sandbox, &self.process, size).await.ok();
    }
}

enum Passed {
    End(End),
    BrokenOff(Option<ClientError>),
}

/// Tells the process the size of our terminal, now and whenever it changes. Never ends.
async fn follow_size(joined: &Joined, mode: Option<&Mode>) -> anyhow::Result<()> {
    let Some(mode) = mode else { return std::future::pending().await };
    let mut changed = signal(SignalKind::window_change())?;
    let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
    let mut told = None;
    loop {
        let size = terminal::size();
        if told.replace(size) != Some(size) {
            joined.resize(size).await;
        }
        tokio::select! {
            _ = changed.recv() => {}
            _ = continued.recv() => mode.again()?,
        }
    }
}

impl End {
    /// The exit code that it gives this program.
    pub(crate) fn exit_code(&self, timeout_secs: Option<u64>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Exited(exit) if exit.timed_out => {
                let secs = timeout_secs.map(|secs| format!("{secs} s were over"));
                let secs = secs.unwrap_or_else(|| "time was over".to_owned());
                report::note(&format!("the program was killed: its {secs}"));
                Ok(Exit::TimedOut.into())
            }
            Self::Exited(exit) => Ok(exit::of_program(exit.exit_code)),
            Self::Gone(reason) => Err(gone(reason)),
            Self::Caught(caught) => Ok(caught.exit()),
            Self::Unread => Ok(Exit::Unread.into()),
            Self::Left => Ok(Caught::Hangup.exit()),
        }
    }
}

/// The failure that an end without an exit is.
pub(crate) fn gone(reason: &str) -> anyhow::Error {
    Hinted::new(
        format!("the program is lost: {reason}"),
        "`forkd ls` shows whether its sandbox is still there",
    )
    .into()
}
