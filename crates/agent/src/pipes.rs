//! The pipes on which programs write, and getting what they write to the host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use forkd_protocol::{DATA_BYTES_MAX, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::active::Active;

/// Most abandoned pipes that are kept from filling up. Beyond it they are closed.
const ABANDONED_MAX: usize = 128;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// Which stream of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn reply(self, data: Vec<u8>) -> Reply {
        match self {
            Self::Stdout => Reply::Stdout { data },
            Self::Stderr => Reply::Stderr { data },
        }
    }
}

/// What came of an attempt to forward output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// This many bytes.
    Bytes(usize),
    /// Nothing is there.
    Nothing,
    /// Something may be there, but the host allows nothing now.
    NoRoom,
    /// All writers are gone.
    Closed,
}

/// Our end of a program's output.
pub(crate) struct OutputPipe {
    stream: Stream,
    read_end: Option<OwnedFd>,
}

impl OutputPipe {
    /// A pipe, and the end for the program.
    pub(crate) fn new(stream: Stream) -> io::Result<(Self, OwnedFd)> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&read_end, OFlags::NONBLOCK)?;
        Ok((Self { stream, read_end: Some(read_end) }, write_end))
    }

    /// What a program writes to its terminal, of which this is our end.
    pub(crate) fn of_terminal(ours: OwnedFd) -> Self {
        Self { stream: Stream::Stdout, read_end: Some(ours) }
    }

    /// A stream that the program does not have.
    pub(crate) fn absent(stream: Stream) -> Self {
        Self { stream, read_end: None }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.read_end.is_some()
    }

    /// The pipe, while it is open.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.read_end.as_ref()
    }

    /// Sends what can be read and may be sent at once, at most one chunk.
    pub(crate) fn forward(&mut self, active: &Active, attend: impl FnMut()) -> Forwarded {
        let room = active.payload_room();
        if self.read_end.is_some() && room == 0 {
            return Forwarded::NoRoom;
        }
        let mut data = Vec::new();
        let outcome = self.read(&mut data, room);
        if let Forwarded::Bytes(_) = outcome {
            active.send(&self.stream.reply(data), attend);
        }
        outcome
    }

    /// Takes what can be read at once, at most one chunk.
    pub(crate) fn take(&mut self) -> (Forwarded, Vec<u8>) {
        let mut data = Vec::new();
        let outcome = self.read(&mut data, DATA_BYTES_MAX);
        if !matches!(outcome, Forwarded::Bytes(_)) {
            data.clear();
        }
        (outcome, data)
    }

    /// Throws away what can be read at once, at most one chunk.
    pub(crate) fn discard(&mut self) -> Forwarded {
        self.read(&mut Vec::new(), DATA_BYTES_MAX)
    }

    fn read(&mut self, data: &mut Vec<u8>, bytes_max: usize) -> Forwarded {
        let Some(pipe) = &self.read_end else { return Forwarded::Closed };
        data.resize(bytes_max, 0);
        match rustix::io::read(pipe, &mut *data) {
            Ok(0) => {
                self.read_end = None;
                Forwarded::Closed
            }
            Ok(count) => {
                data.truncate(count);
                Forwarded::Bytes(count)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Forwarded::Nothing,
            Err(_) => {
                self.read_end = None;
                Forwarded::Closed
            }
        }
    }
}

/// Keeps the pipes of programs that go on in the background from filling up, or from breaking under
/// them, until all writers are gone.
pub(crate) fn drain(mut pipes: Vec<OutputPipe>) {
    pipes.retain(OutputPipe::is_open);
    let count = pipes.len();
    if ABANDONED.fetch_add(count, Ordering::Relaxed) + count <= ABANDONED_MAX {
        while !pipes.is_empty() {
            let mut fds: Vec<_> = pipes
                .iter()
                .filter_map(OutputPipe::fd)
                .map(|pipe| PollFd::new(pipe, PollFlags::IN))
                .collect();
            if poll(&mut fds, None::<&Timespec>).is_err() {
                continue;
            }
            for pipe in &mut pipes {
                pipe.discard();
            }
            pipes.retain(OutputPipe::is_open);
        }
    }
    ABANDONED.fetch_sub(count, Ordering::Relaxed);
}
