//! Watches that outlive the conversation in which they were made: what they see waits until a host
//! asks for it. So a branch's child, and a sandbox whose daemon has died, has the watches of
//! before, with what changed since somebody asked last.
//!
//! ```text
//! kernel's queue --> thread of the watch --> what waits --TakeChanges--> host
//!        \--------------- TakeChanges empties it first ------/
//! ```
//!
//! Guarantees: what was done before a request for changes is in its answer, or an end of it says
//! that changes were missed. What waits is bounded, for all watches together; where there is no
//! room the newest changes are missed, and one that says so stands for them. A change that could
//! not be sent, because a branch or a new host came between, waits on.
//!
//! Does not do: know who asks. Two who ask for the same watch share its changes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forkd_protocol::{
    KEPT_NAME_BYTES_MAX, KEPT_RECORD_BYTES_MAX, Keep, Reply, WATCHES_KEPT_MAX, code,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::sync::lock;
use crate::threads;
use crate::watch::{Extent, Root, Sink, Watcher, lost};

/// What all watches together keep for those who ask.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a change takes beside its texts.
const CHANGE_BYTES: usize = 160;

const STACK_BYTES: usize = 128 * 1024;

/// What has changed and was not asked for yet.
struct Waiting {
    changes: VecDeque<Reply>,
    /// Of all watches.
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Waiting {
    fn new(bytes: &Arc<AtomicUsize>, bytes_max: usize) -> Self {
        Self { changes: VecDeque::new(), bytes: Arc::clone(bytes), bytes_max }
    }

    fn pop(&mut self) -> Option<Reply> {
        let change = self.changes.pop_front()?;
        self.bytes.fetch_sub(cost(&change), Ordering::Relaxed);
        Some(change)
    }

    /// Gives back what could not be told.
    fn push_back_to_front(&mut self, change: Reply) {
        self.bytes.fetch_add(cost(&change), Ordering::Relaxed);
        self.changes.push_front(change);
    }
}

impl Sink for Waiting {
    fn take(&mut self, change: Reply) -> bool {
        let has_room = self.bytes.load(Ordering::Relaxed) + cost(&change) <= self.bytes_max;
        let lost = lost();
        let change = match has_room {
            true => change,
            // One stands for all that are missed in a row.
            false if self.changes.back() == Some(&lost) => return true,
            false => lost,
        };
        self.bytes.fetch_add(cost(&change), Ordering::Relaxed);
        self.changes.push_back(change);
        true
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let bytes = self.changes.iter().map(cost).sum();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn cost(change: &Reply) -> usize {
    CHANGE_BYTES + change.payload_bytes().unwrap_or(0)
}

struct State {
    watcher: Watcher<Waiting>,
    /// Why nothing more is seen.
    over: Option<Refusal>,
}

impl State {
    fn advance(&mut self) {
        if self.over.is_none() {
            self.over = match self.watcher.advance() {
                Ok(Root::Stands) => None,
                Ok(Root::Gone) => {
                    Some(Refusal::new(code::FILE_NOT_FOUND, "the watched path is gone"))
                }
                Err(refusal) => Some(refusal),
            };
        }
    }
}

struct KeptWatch {
    keep: Keep,
    state: Mutex<State>,
    /// Readable when the watch is ended.
    ended: OwnedFd,
}

impl KeptWatch {
    /// Sees changes until it is ended or over.
    fn run(&self) {
        let inotify = lock(&self.state).watcher.kernel_queue();
        loop {
            let pair_until = {
                let mut state = lock(&self.state);
                state.advance();
                if state.over.is_some() {
                    return;
                }
                state.watcher.pair_until()
            };
            let mut fds =
                [PollFd::new(&*inotify, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            wait_until(&mut fds, pair_until);
            if fds[1].revents().contains(PollFlags::IN) {
                return;
            }
        }
    }

    /// Tells what waits, with all that was done until now.
    fn tell(&self, active: &Active) -> Result<(), Refusal> {
        let mut left = {
            let mut state = lock(&self.state);
            state.advance();
            // Of a renaming that is over by now the other half is here, or comes no more.
            if let Some(until) = state.watcher.pair_until() {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                state.advance();
            }
            if state.over.is_some() {
                self.end();
            }
            let left = state.watcher.sink().changes.len();
            match &state.over {
                Some(refusal) if left == 0 => return Err(refusal.clone()),
                _ => left,
            }
        };
        if !active.send_when_allowed(&Reply::KeptWatch { record: self.keep.record.clone() }) {
            return Ok(());
        }
        while left > 0 {
            let Some(change) = lock(&self.state).watcher.sink().pop() else { break };
            if !active.send_when_allowed(&change) {
                lock(&self.state).watcher.sink().push_back_to_front(change);
                break;
            }
            left -= 1;
        }
        Ok(())
    }

    /// Sees what was done until now.
    fn look(&self) {
        let mut state = lock(&self.state);
        state.advance();
        if state.over.is_some() {
            self.end();
        }
    }

    fn is_over(&self) -> bool {
        lock(&self.state).over.is_some()
    }

    fn end(&self) {
        // A full counter is readable, which is all that matters.
        rustix::io::write(&self.ended, &1u64.to_ne_bytes()).ok();
    }
}

/// The watches that are kept, the oldest first.
#[derive(Default)]
pub(crate) struct KeptWatches {
    list: Mutex<Vec<Arc<KeptWatch>>>,
    bytes: Arc<AtomicUsize>,
}

impl KeptWatches {
    /// Begins one. Where there are too many, one that is over gives way.
    pub(crate) fn keep(&self, keep: Keep, path: &str, extent: Extent) -> Result<Reply, Refusal> {
        if keep.name.len() > KEPT_NAME_BYTES_MAX || keep.record.len() > KEPT_RECORD_BYTES_MAX {
            let message = "the name or the record of a watch to be kept is too long";
            return Err(Refusal::new(code::BAD_REQUEST, message));
        }
        let watcher = Watcher::begin(path, extent, Waiting::new(&self.bytes, WAITING_BYTES_MAX))?;
        let busy = |error: std::io::Error| Refusal::new(code::BUSY, error.to_string());
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ended = ended.map_err(|errno| busy(errno.into()))?;
        let state = Mutex::new(State { watcher, over: None });
        let watch = Arc::new(KeptWatch { keep, state, ended });
        let mut list = lock(&self.list);
        if list.iter().any(|other| other.keep.name == watch.keep.name) {
            let message = format!("a watch is kept as {:?}", watch.keep.name);
            return Err(Refusal::new(code::DUPLICATE_ID, message));
        }
        if list.len() >= WATCHES_KEPT_MAX {
            let Some(oldest) = list.iter().position(|watch| watch.is_over()) else {
                let message = format!("{WATCHES_KEPT_MAX} watches are kept");
                return Err(Refusal::new(code::BUSY, message));
            };
            list.remove(oldest);
        }
        let runs = Arc::clone(&watch);
        threads::start("watch", STACK_BYTES, move || runs.run()).map_err(busy)?;
        list.push(watch);
        Ok(Reply::Done {})
    }

    /// Has all of them see what was done until now: directories that are new are watched when this
    /// returns.
    pub(crate) fn look(&self) {
        let all = lock(&self.list).clone();
        all.iter().for_each(|watch| watch.look());
    }

    /// Sends what a watch has seen, then the end or what went wrong.
    pub(crate) fn tell(&self, active: &Active, name: &str) {
        let last = match self.find(name).and_then(|watch| watch.tell(active)) {
            Ok(()) => Reply::Done {},
            Err(refusal) => refusal.into_reply(),
        };
        active.send(&last, || {});
    }

    /// Sees nothing more, and forgets what waits.
    pub(crate) fn end(&self, name: &str) -> Result<Reply, Refusal> {
        let watch = self.find(name)?;
        lock(&self.list).retain(|other| !Arc::ptr_eq(other, &watch));
        watch.end();
        Ok(Reply::Done {})
    }

    fn find(&self, name: &str) -> Result<Arc<KeptWatch>, Refusal> {
        let list = lock(&self.list);
        let found = list.iter().find(|watch| watch.keep.name == name).cloned();
        found.ok_or_else(|| Refusal::new(code::NOT_KEPT, "no watch is kept under this name"))
    }
}

#[cfg(test)]
mod tests {
    use forkd_protocol::ChangeDetail;

    use super::*;

    /// Room for two short changes.
    const MAX: usize = 3 * CHANGE_BYTES;

    fn change(path: &str) -> Reply {
        let (kind, path) = ("created".to_owned(), path.to_owned());
        Reply::Change { kind, path, from: None, entry: None, detail: ChangeDetail::None }
    }

    #[test]
    fn where_there_is_no_room_one_change_stands_for_those_that_are_missed() {
        let bytes = Arc::default();
        let mut waiting = Waiting::new(&bytes, MAX);
        for path in ["/a", "/b", "/c", "/d"] {
            assert!(waiting.take(change(path)));
        }
        assert_eq!(waiting.pop(), Some(change("/a")));
        assert_eq!(waiting.pop(), Some(change("/b")));
        assert!(waiting.take(change("/e")), "there is room again");
        assert_eq!(waiting.pop(), Some(lost()));
        let last = waiting.pop().unwrap();
        assert_eq!(last, change("/e"));
        waiting.push_back_to_front(last);
        assert_eq!((waiting.pop(), waiting.pop()), (Some(change("/e")), None));
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_watches_together_have_one_bound_and_an_ended_one_gives_its_share_back() {
        let bytes = Arc::default();
        let mut first = Waiting::new(&bytes, MAX);
        let mut second = Waiting::new(&bytes, MAX);
        first.take(change("/a"));
        first.take(change("/b"));
        second.take(change("/c"));
        assert_eq!(second.pop(), Some(lost()));
        drop(first);
        second.take(change("/c"));
        assert_eq!(second.pop(), Some(change("/c")));
        assert_eq!(bytes.load(Ordering::Relaxed), 0);
    }
}
