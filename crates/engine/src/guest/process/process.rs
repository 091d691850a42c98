//! One process as the daemon knows it, and reading its output.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use forkd_protocol::DATA_BYTES_MAX;
use forkd_types::ProcessId;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::kept::Record;
use super::log::{OutputLog, Piece, Stream};
use super::{Audience, ProcessError, Started, TerminalSize};
use crate::guest::ExecExit;
use crate::guest::call::{CallLink, InputPiece};

/// How long input waits for the program to read what it was given before.
const INPUT_DEADLINE: Duration = Duration::from_secs(30);

/// How a process ended, or why that will never be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It ended by itself or was killed.
    Exited(ExecExit),
    /// It was removed, its sandbox ended, or its guest agent broke the protocol.
    Lost {
        /// For people.
        reason: String,
    },
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessView {
    /// Its id here.
    pub id: ProcessId,
    /// Its id in the guest.
    pub pid: u32,
    /// Program and arguments.
    pub args: Vec<String>,
    /// When it was started.
    pub created_at: SystemTime,
    /// It was started before this sandbox was forked, in its source.
    pub inherited: bool,
    /// What its starter wanted to find again. In a fork it comes from the guest.
    pub note: Option<String>,
    /// How it ended; absent while it runs.
    pub end: Option<ProcessEnd>,
    /// Offset of the oldest byte of output that is kept.
    pub output_from: u64,
    /// Offset that the next byte of output will have.
    pub output_to: u64,
}

/// A part of a process's output, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Bytes of one stream.
    Data {
        /// Which.
        stream: Stream,
        /// The bytes.
        data: Vec<u8>,
        /// Offset after the last one.
        to: u64,
    },
    /// Bytes that the reader wanted are no longer kept.
    Lost {
        /// How many.
        bytes: u64,
        /// Offset after the last one.
        to: u64,
    },
    /// All output has been read, and the process has ended.
    Ended(ProcessEnd),
}

/// The place of a reader who is expected, among those who are there.
const EXPECTED: u64 = u64::MAX;

struct State {
    log: OutputLog,
    /// How far each reader is.
    positions: BTreeMap<u64, u64>,
    readers_so_far: u64,
    end: Option<ProcessEnd>,
    /// The way to the guest's side; gone when the process has ended.
    link: Option<CallLink>,
    input: Option<mpsc::Sender<InputPiece>>,
}

/// A background process.
pub(super) struct Process {
    id: ProcessId,
    pid: u32,
    inherited: bool,
    record: Record,
    state: Mutex<State>,
    /// Output came, or the end.
    changed: Notify,
    /// A reader has made room.
    freed: Notify,
    supervisor: OnceLock<AbortHandle>,
}

impl Process {
    pub(super) fn new(
        start: &Started,
        id: ProcessId,
        record: Record,
        inherited: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            pid: start.pid,
            inherited,
            record,
            state: Mutex::new(State {
                log: OutputLog::starting_at(start.from),
                positions: BTreeMap::new(),
                readers_so_far: 0,
                end: None,
                link: Some(start.call.link()),
                input: start.input.clone(),
            }),
            changed: Notify::new(),
            freed: Notify::new(),
            supervisor: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> &ProcessId {
        &self.id
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.inherited
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(super) fn view(&self) -> ProcessView {
        let state = self.lock();
        ProcessView {
            id: self.id.clone(),
            pid: self.pid,
            args: self.record.args.clone(),
            created_at: self.record.created_at(),
            inherited: self.inherited,
            note: self.record.note.clone(),
            end: state.end.clone(),
            output_from: state.log.from(),
            output_to: state.log.to(),
        }
    }

    /// Says, before anything is written, who will read it.
    pub(super) fn expect(&self, audience: Audience) {
        if audience == Audience::Expected {
            self.lock().positions.insert(EXPECTED, 0);
        }
    }

    // The supervisor's side.

    pub(super) fn supervised_by(&self, supervisor: AbortHandle) {
        // Set once, right after the task is made.
        self.supervisor.set(supervisor).ok();
    }

    /// Keeps what the program wrote. What no reader has still to read is dropped when it is too
    /// much.
    pub(super) fn write(&self, stream: Stream, data: &[u8]) {
        let mut state = self.lock();
        state.log.push(stream, data);
        state.trim();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Whether the program may write on: no reader would lose anything by it.
    pub(super) fn may_go_on(&self) -> bool {
        let state = self.lock();
        state.slowest().is_none_or(|at| state.log.has_room_after(at))
    }

    /// Waits until a reader has made room, or is gone.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Notes the end; the first one counts.
    pub(super) fn finish(&self, end: ProcessEnd) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        state.link = None;
        state.input = None;
        state.log.close();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the process, and what watches it, for a reason of ours.
    pub(super) fn give_up(&self, reason: &str) {
        self.finish(ProcessEnd::Lost { reason: reason.to_owned() });
        if let Some(supervisor) = self.supervisor.get() {
            supervisor.abort();
        }
    }

    // The users' side.

    pub(super) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    /// Gives input to the program: all of it or nothing. It waits here until the program has room
    /// for it.
    pub(super) async fn give_input(&self, piece: InputPiece) -> Result<(), ProcessError> {
        let no_input = || ProcessError::NoInput { id: self.id.clone() };
        let sender = {
            let state = self.lock();
            if state.end.is_some() {
                return Err(ProcessError::Ended { id: self.id.clone() });
            }
            state.input.clone().ok_or_else(no_input)?
        };
        match tokio::time::timeout(INPUT_DEADLINE, sender.reserve()).await {
            Err(_) => Err(ProcessError::InputWaits { id: self.id.clone() }),
            Ok(Err(_)) => Err(ProcessError::Ended { id: self.id.clone() }),
            Ok(Ok(place)) => {
                let mut state = self.lock();
                if state.input.is_none() {
                    return Err(no_input());
                }
                if piece.eof {
                    state.input = None;
                }
                place.send(piece);
                Ok(())
            }
        }
    }

    pub(super) fn signal(&self, signal: i32) -> Result<(), ProcessError> {
        match &self.lock().link {
            Some(link) => Ok(link.send_signal(signal)?),
            None => Err(ProcessError::Ended { id: self.id.clone() }),
        }
    }

    pub(super) fn resize(&self, size: TerminalSize) -> Result<(), ProcessError> {
        if !self.record.terminal {
            return Err(ProcessError::NoTerminal { id: self.id.clone() });
        }
        match &self.lock().link {
            Some(link) => Ok(link.send_size(size.rows, size.cols)?),
            None => Err(ProcessError::Ended { id: self.id.clone() }),
        }
    }

    /// A reader from the offset `from` on; from the oldest kept byte when absent.
    pub(super) fn read(self: &Arc<Self>, from: Option<u64>) -> Result<OutputReader, ProcessError> {
        let mut state = self.lock();
        let to = state.log.to();
        let at = from.unwrap_or_else(|| state.log.from());
        if at > to {
            return Err(ProcessError::PastTheEnd { from: at, to });
        }
        let key = state.readers_so_far;
        state.readers_so_far += 1;
        let reads_from = at.max(state.log.from());
        state.positions.insert(key, reads_from);
        state.positions.remove(&EXPECTED);
        drop(state);
        Ok(OutputReader { process: Arc::clone(self), key, at, over: false })
    }
}

impl State {
    fn slowest(&self) -> Option<u64> {
        self.positions.values().min().copied()
    }

    fn trim(&mut self) {
        self.log.trim(self.slowest());
    }
}

/// Follows the output of one process. While it lives nothing that it has not given is dropped; the
/// program is held back instead.
pub struct OutputReader {
    process: Arc<Process>,
    key: u64,
    at: u64,
    over: bool,
}

impl OutputReader {
    /// The next event, when there is one; `None` after [`OutputEvent::Ended`]. What was given
    /// before counts as read. Safe to cancel.
    pub async fn next(&mut self) -> Option<OutputEvent> {
        let process = Arc::clone(&self.process);
        loop {
            if self.over {
                return None;
            }
            let changed = process.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(event) = self.step() {
                return Some(event);
            }
            changed.await;
        }
    }

    fn step(&mut self) -> Option<OutputEvent> {
        let mut state = self.process.lock();
        let from = state.log.from();
        if let Some(bytes) = from.checked_sub(self.at).filter(|bytes| *bytes > 0) {
            self.at = from;
            return Some(OutputEvent::Lost { bytes, to: from });
        }
        state.positions.insert(self.key, self.at);
        state.trim();
        self.process.freed.notify_one();
        if let Some(Piece { stream, data }) = state.log.piece(self.at, DATA_BYTES_MAX as u64) {
            self.at += data.len() as u64;
            return Some(OutputEvent::Data { stream, data, to: self.at });
        }
        self.over = state.end.is_some();
        state.end.clone().map(OutputEvent::Ended)
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        let mut state = self.process.lock();
        state.positions.remove(&self.key);
        state.trim();
        self.process.freed.notify_one();
    }
}
