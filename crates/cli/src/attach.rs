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
mod joined;
mod writer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use forkd_api::{OutputEvent, ProcessExit, TtySize};
use forkd_client::{ClientError, OutputStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::console::report::{self, Hinted};
use crate::console::signals::{Caught, Signals};
use crate::console::terminal::{self, Keys, Mode};
use crate::exit::{self, Exit};

use input::Feed;
use writer::Writer;

pub(crate) use joined::{Collected, Input, Joined, Sink};

/// How often a stream that breaks off is taken up without anything having come.
const TRIES: u32 = 5;

/// Before the first of these tries; each next one waits twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// For the rest of the output to be written when we are interrupted.
const PATIENCE: Duration = Duration::from_millis(500);

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
                    None => bail!("the daemon keeps closing the output of the process"),
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
                    let text = format!("{bytes} bytes of output are lost\n");
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
                let after = timeout_secs.map(|secs| format!(" after {secs} s"));
                report::note(&format!("killed the program{}", after.unwrap_or_default()));
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
        format!("lost the program: {reason}"),
        "check with `forkd ls` that its sandbox is still there",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_client::{Client, Target};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;

    /// Answers one request after the other, each with a stream of these events that then breaks
    /// off. Gives back the first lines of the requests.
    fn daemon(socket: &Path, answers: Vec<&'static str>) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let answer = |events: &'static str| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                    let count = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                }
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                stream.write_all(format!("{head}{events}").as_bytes()).unwrap();
                String::from_utf8(request).unwrap().lines().next().unwrap().to_owned()
            };
            answers.into_iter().map(answer).collect()
        })
    }

    async fn followed(socket: &Path) -> (anyhow::Result<End>, Collected) {
        let collected = Arc::<Mutex<Collected>>::default();
        let mut joined = Joined {
            client: Client::new(Target::Socket(socket.to_owned())).unwrap(),
            sandbox: "sb-0".into(),
            process: "pr-0".into(),
            from: Some(0),
            input: Input::None,
            sink: Sink::Memory(Arc::clone(&collected)),
        };
        let end = joined.follow(&mut Signals::deaf()).await;
        (end, std::mem::take(&mut collected.lock().unwrap()))
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_is_taken_up_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let server = daemon(
            &socket,
            vec![
                "event: stdout\nid: 2\ndata: {\"text\":\"a\\n\"}\n\nevent: stdout\nid: 9\ndata: {",
                "event: stderr\nid: 4\ndata: {\"text\":\"b\\n\"}\n\n",
                "event: exit\n\
                 data: {\"exit_code\":7,\"signal\":null,\"timed_out\":false}\n\n",
            ],
        );
        let (end, collected) = followed(&socket).await;
        let exit = ProcessExit { exit_code: 7, signal: None, timed_out: false };
        assert_eq!(end.unwrap(), End::Exited(exit));
        assert_eq!((&collected.stdout[..], &collected.stderr[..]), (&b"a\n"[..], &b"b\n"[..]));
        let of = |from: u32| {
            format!("GET /v1/sandboxes/sb-0/processes/pr-0/output?from={from} HTTP/1.1")
        };
        assert_eq!(server.join().unwrap(), [of(0), of(2), of(4)]);
    }

    #[tokio::test]
    async fn a_daemon_that_does_not_come_back_is_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let server = daemon(&socket, vec!["event: stdout\nid: 2\ndata: {\"text\":\"a\\n\"}\n\n"]);
        let (end, collected) = followed(&socket).await;
        server.join().unwrap();
        let error = end.unwrap_err();
        let client = error.downcast_ref::<ClientError>();
        assert!(client.is_some_and(ClientError::is_unreachable), "{error:?}");
        assert_eq!(collected.stdout, b"a\n");
    }
}
