//! Programs that outlive the conversation in which they were started: a host of a later epoch finds
//! them by their name and goes on with them. So a branch's child, and a sandbox whose daemon has
//! died, has the programs of before.
//!
//! ```text
//!  followed --Hello--> alone: output goes to its backlog --Follow--> followed
//!      |                 |
//!      +--> ended <------+   (alone: it has ended, and its backlog waits for a host)
//! ```
//!
//! Guarantees: what a program writes while nobody follows it is kept, the newest bytes of it, and
//! the program never waits. A follower gets each byte from `Followed`'s offset on once. Programs,
//! records and backlogs are bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forkd_protocol::{KEPT_MAX, KEPT_NAME_BYTES_MAX, KEPT_RECORD_BYTES_MAX, Keep, Reply, code};

use crate::active::{Active, Refusal};
use crate::pipes::Stream;
use crate::process::Exit;
use crate::sync::lock;

/// What a program may write while nobody follows it, until the oldest of it is dropped.
const BACKLOG_BYTES_MAX: usize = 64 * 1024;

/// How a kept program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) exit: Exit,
    pub(crate) timed_out: bool,
    /// All that it wrote, in bytes.
    pub(crate) written: u64,
}

impl End {
    pub(crate) fn into_reply(self) -> Reply {
        let Exit { code: exit_code, signal } = self.exit;
        Reply::Exited { exit_code, signal, timed_out: self.timed_out }
    }
}

enum State {
    Starting,
    Runs { pid: i32 },
    Ended { pid: i32, end: End },
}

/// A program that is kept.
pub(crate) struct KeptProgram {
    keep: Keep,
    active: Arc<Active>,
    /// How many identities the machine had taken when it was started.
    identities: u64,
    state: Mutex<State>,
}

/// What has become of a request to follow a program.
pub(crate) enum Followed {
    /// Its own thread tells the follower everything.
    Runs(Arc<Active>),
    /// It has ended, and nothing of its output is left.
    Ended(End),
}

impl KeptProgram {
    /// It runs.
    pub(crate) fn started(&self, pid: i32) {
        *lock(&self.state) = State::Runs { pid };
    }

    /// Notes its end, all its output having been sent. False when it has a new follower meanwhile,
    /// who has heard nothing of it.
    pub(crate) fn ended(&self, end: End) -> bool {
        let mut state = lock(&self.state);
        if self.active.has_follower() {
            return false;
        }
        if let State::Runs { pid } = *state {
            *state = State::Ended { pid, end };
        }
        true
    }

    /// The request `id` of this epoch goes on with it.
    pub(crate) fn follow(&self, id: u64, epoch: u64, credit: u64) -> Result<Followed, Refusal> {
        let state = lock(&self.state);
        match &*state {
            State::Ended { end, .. } => Ok(Followed::Ended(*end)),
            State::Starting | State::Runs { .. } if self.active.rebind(id, epoch, credit) => {
                Ok(Followed::Runs(Arc::clone(&self.active)))
            }
            State::Starting | State::Runs { .. } => {
                Err(Refusal::new(code::BUSY, "the program is followed already"))
            }
        }
    }

    fn has_ended(&self) -> bool {
        matches!(*lock(&self.state), State::Ended { .. })
    }
}

/// The programs that are kept, the oldest first.
#[derive(Default)]
pub(crate) struct KeptPrograms {
    list: Mutex<Vec<Arc<KeptProgram>>>,
    identities: AtomicU64,
}

impl KeptPrograms {
    /// Makes a place for a program that is about to start. One that has ended gives way. Those that
    /// run are as many as requests may be under way.
    pub(crate) fn add(
        &self,
        keep: Keep,
        active: &Arc<Active>,
    ) -> Result<Arc<KeptProgram>, Refusal> {
        if keep.name.len() > KEPT_NAME_BYTES_MAX || keep.record.len() > KEPT_RECORD_BYTES_MAX {
            let message = "the name or the record of a program to be kept is too long";
            return Err(Refusal::new(code::BAD_REQUEST, message));
        }
        let mut list = lock(&self.list);
        if list.iter().any(|program| program.keep.name == keep.name) {
            let message = format!("a program is kept as {:?}", keep.name);
            return Err(Refusal::new(code::DUPLICATE_ID, message));
        }
        if list.len() >= KEPT_MAX
            && let Some(oldest) = list.iter().position(|program| program.has_ended())
        {
            list.remove(oldest);
        }
        let program = Arc::new(KeptProgram {
            keep,
            active: Arc::clone(active),
            identities: self.identities.load(Ordering::Relaxed),
            state: Mutex::new(State::Starting),
        });
        list.push(Arc::clone(&program));
        Ok(program)
    }

    /// It could not be started, or its host has forgotten it.
    pub(crate) fn remove(&self, program: &Arc<KeptProgram>) {
        lock(&self.list).retain(|other| !Arc::ptr_eq(other, program));
    }

    /// Ends a program and keeps it no longer.
    pub(crate) fn forget(&self, name: &str) {
        let mut list = lock(&self.list);
        if let Some(index) = list.iter().position(|program| program.keep.name == name) {
            let program = list.remove(index);
            if !program.has_ended() {
                program.active.cancel();
            }
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<KeptProgram>, Refusal> {
        let list = lock(&self.list);
        let found = list.iter().find(|program| program.keep.name == name).cloned();
        let missing = || Refusal::new(code::NOT_KEPT, "no program is kept under this name");
        found.ok_or_else(missing)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(lock(&self.list).len()).unwrap_or(u32::MAX)
    }

    /// The machine has taken another identity.
    pub(crate) fn machine_was_renewed(&self) {
        self.identities.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells of each program.
    pub(crate) fn list(&self, active: &Active) {
        let identities = self.identities.load(Ordering::Relaxed);
        let all = lock(&self.list).clone();
        for program in all {
            let pid = match *lock(&program.state) {
                State::Starting => continue,
                State::Runs { pid } | State::Ended { pid, .. } => pid.unsigned_abs(),
            };
            let Keep { name, record } = program.keep.clone();
            let inherited = program.identities != identities;
            if !active.send_when_allowed(&Reply::Kept { name, record, pid, inherited }) {
                return;
            }
        }
        active.send(&Reply::Done {}, || {});
    }
}

/// What a program has written while nobody followed it: the newest bytes, in their order.
#[derive(Default)]
pub(crate) struct Backlog {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.bytes += data.len();
        // One allocation for many small writes.
        match self.pieces.back_mut().filter(|(last, _)| *last == stream) {
            Some((_, piece)) if piece.len() + data.len() <= BACKLOG_BYTES_MAX / 4 => {
                piece.extend_from_slice(data);
            }
            _ => self.pieces.push_back((stream, data.to_vec())),
        }
        while self.bytes > BACKLOG_BYTES_MAX {
            let surplus = self.bytes - BACKLOG_BYTES_MAX;
            self.take(surplus);
        }
    }

    /// Takes at most so many of the oldest bytes, all of one stream.
    pub(crate) fn take(&mut self, bytes_max: usize) -> Option<(Stream, Vec<u8>)> {
        let (stream, piece) = self.pieces.front_mut()?;
        let (stream, count) = (*stream, piece.len().min(bytes_max));
        let taken = if count == piece.len() {
            self.pieces.pop_front().map(|(_, piece)| piece).unwrap_or_default()
        } else {
            piece.drain(..count).collect()
        };
        self.bytes -= count;
        Some((stream, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_keeps_the_newest_bytes_in_their_order() {
        let mut backlog = Backlog::default();
        for index in 0..3000_u32 {
            let stream = if index % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
            backlog.push(stream, format!("{index:>040}\n").as_bytes());
        }
        assert_eq!(backlog.bytes(), BACKLOG_BYTES_MAX as u64);
        let (mut all, mut taken) = (String::new(), 0);
        while let Some((_, piece)) = backlog.take(1000) {
            assert!(piece.len() <= 1000);
            taken += piece.len();
            all += std::str::from_utf8(&piece).unwrap();
        }
        assert_eq!((taken, backlog.bytes()), (BACKLOG_BYTES_MAX, 0));
        let whole: String = (0..3000).map(|index| format!("{index:>040}\n")).collect();
        assert_eq!(all, whole[whole.len() - BACKLOG_BYTES_MAX..]);
    }

    #[test]
    fn a_write_larger_than_the_backlog_leaves_its_end() {
        let mut backlog = Backlog::default();
        backlog.push(Stream::Stdout, b"");
        assert!(backlog.is_empty(), "nothing is no piece");
        backlog.push(Stream::Stdout, b"before");
        let data: Vec<u8> = (0..=255).cycle().take(BACKLOG_BYTES_MAX + 7).collect();
        backlog.push(Stream::Stderr, &data);
        let (stream, kept) = backlog.take(usize::MAX).unwrap();
        assert_eq!((stream, &kept[..]), (Stream::Stderr, &data[7..]));
        assert!(backlog.is_empty());
    }
}
