//! What has happened, for those who follow it.
//!
//! Every change of a sandbox, a snapshot or an operation is put into a ring with the state after
//! the change. Readers have a position in the ring and nothing else: one that is slow costs
//! nothing, holds nobody up, and is told how many events it has missed.
//!
//! Numbers ascend and begin at the time of the daemon's start, so that a number of another daemon
//! is recognised as such. Nothing is kept on disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_types::{EventType, SandboxId, SnapshotTag, limit};
use tokio::sync::Notify;

use crate::{Caller, Operation, Sandbox, Snapshot};

/// What happened to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxChange {
    /// It was handed out.
    Started,
    /// It has another state, or another reason for it.
    State,
    /// Its VMM is gone although nobody asked for it.
    Dead,
    /// The network gateway has refused what it wanted to reach.
    Refused,
    /// It was removed.
    Removed,
}

/// What happened to a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotChange {
    /// Its tag was taken.
    Writing,
    /// Sandboxes can start from it.
    Ready,
    /// It is on disk.
    Durable,
    /// It will never be usable.
    Failed,
    /// It was removed.
    Removed,
}

/// What happened to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationChange {
    /// It has begun.
    Started,
    /// It is at another step.
    Progress,
    /// It is over, whatever its result.
    Ended,
}

/// A change, and how things were right after it.
#[derive(Debug, Clone)]
pub enum Change {
    /// Of a sandbox.
    Sandbox(SandboxChange, Box<Sandbox>),
    /// Of a snapshot.
    Snapshot(SnapshotChange, Box<Snapshot>),
    /// Of an operation.
    Operation(OperationChange, Box<Operation>),
}

impl Change {
    /// Its name: what changed, a dot, and how.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.event_type().name()
    }

    const fn event_type(&self) -> EventType {
        match self {
            Self::Sandbox(SandboxChange::Started, _) => EventType::SandboxStarted,
            Self::Sandbox(SandboxChange::State, _) => EventType::SandboxState,
            Self::Sandbox(SandboxChange::Dead, _) => EventType::SandboxDead,
            Self::Sandbox(SandboxChange::Refused, _) => EventType::SandboxRefused,
            Self::Sandbox(SandboxChange::Removed, _) => EventType::SandboxRemoved,
            Self::Snapshot(SnapshotChange::Writing, _) => EventType::SnapshotWriting,
            Self::Snapshot(SnapshotChange::Ready, _) => EventType::SnapshotReady,
            Self::Snapshot(SnapshotChange::Durable, _) => EventType::SnapshotDurable,
            Self::Snapshot(SnapshotChange::Failed, _) => EventType::SnapshotFailed,
            Self::Snapshot(SnapshotChange::Removed, _) => EventType::SnapshotRemoved,
            Self::Operation(OperationChange::Started, _) => EventType::OperationStarted,
            Self::Operation(OperationChange::Progress, _) => EventType::OperationProgress,
            Self::Operation(OperationChange::Ended, _) => EventType::OperationEnded,
        }
    }

    /// Whether it exists for `caller`.
    fn is_for(&self, caller: &Caller) -> bool {
        match self {
            Self::Sandbox(_, sandbox) => caller.sees_sandbox(sandbox),
            Self::Snapshot(_, snapshot) => caller.sees_snapshot(snapshot),
            Self::Operation(_, operation) => caller.sees_operation(operation),
        }
    }

    /// The sandbox that it is about: itself, a snapshot's source, an operation's.
    #[must_use]
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Sandbox(_, sandbox) => Some(&sandbox.id),
            Self::Snapshot(_, snapshot) => snapshot.branched_from.as_ref(),
            Self::Operation(_, operation) => operation.sandbox_id.as_ref(),
        }
    }

    /// The snapshot that it is about: itself, the one that a sandbox started from, an operation's.
    #[must_use]
    pub fn snapshot(&self) -> Option<&SnapshotTag> {
        match self {
            Self::Sandbox(_, sandbox) => Some(&sandbox.snapshot_tag),
            Self::Snapshot(_, snapshot) => Some(&snapshot.tag),
            Self::Operation(_, operation) => operation.snapshot_tag.as_ref(),
        }
    }
}

/// What a reader gets next.
#[derive(Debug, Clone)]
pub enum Next {
    /// Something happened.
    Event(Arc<Change>),
    /// Events that the reader wanted are no longer kept.
    Lost {
        /// How many; unknown when an earlier daemon had them, and when the reader sees only some.
        events: Option<u64>,
    },
}

/// The ring. Cheap to write to, whoever reads.
#[derive(Debug)]
pub(crate) struct EventLog {
    ring: Mutex<Ring>,
    changed: Notify,
}

#[derive(Debug)]
struct Ring {
    /// Number of the event that was or will be the first.
    first: u64,
    /// Number of the event that will be the next.
    next: u64,
    kept: VecDeque<Arc<Change>>,
    closed: bool,
}

/// Numbers that one second of a daemon's life is given: enough for two daemons never to share one.
const NUMBERS_PER_SECOND: u64 = 1 << 20;

impl EventLog {
    /// An empty log of a daemon that starts now.
    pub(crate) fn new() -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self::starting_with(now.saturating_mul(NUMBERS_PER_SECOND))
    }

    fn starting_with(first: u64) -> Arc<Self> {
        let ring = Ring { first, next: first, kept: VecDeque::new(), closed: false };
        Arc::new(Self { ring: Mutex::new(ring), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event; the oldest one goes when there are too many.
    pub(crate) fn push(&self, change: Change) {
        let mut ring = self.lock();
        if ring.kept.len() == limit::EVENTS_KEPT {
            ring.kept.pop_front();
        }
        ring.kept.push_back(Arc::new(change));
        ring.next += 1;
        drop(ring);
        self.changed.notify_waiters();
    }

    /// Nothing will be added: readers end once they have read what is there.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// A reader for `caller` of what comes after the event `last`; of what happens from now on when
    /// there is none.
    pub(crate) fn reader(self: &Arc<Self>, last: Option<u64>, caller: Caller) -> EventReader {
        let ring = self.lock();
        let is_ours = |last: &u64| (ring.first..ring.next).contains(last);
        let (position, is_strange) = match last {
            None => (ring.next, false),
            Some(last) if is_ours(&last) => (last + 1, false),
            // The number before the first: given to readers of this daemon before any event.
            Some(last) if last.checked_add(1) == Some(ring.first) => (ring.first, false),
            Some(_) => (ring.next - ring.kept.len() as u64, true),
        };
        drop(ring);
        EventReader { log: Arc::clone(self), caller, position, is_strange }
    }
}

/// Reads the log at its own pace.
#[derive(Debug)]
pub struct EventReader {
    log: Arc<EventLog>,
    /// Events that do not exist for it are passed over.
    caller: Caller,
    /// Number of the event to be read next.
    position: u64,
    /// It came with a number of another daemon, and has to be told.
    is_strange: bool,
}

impl EventReader {
    /// The number to go on after: of the last event that was read, or passed over.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.position.saturating_sub(1)
    }

    /// Waits for the next event. None when there will be no more. May be dropped at any time
    /// without losing an event.
    pub async fn next(&mut self) -> Option<Next> {
        let log = Arc::clone(&self.log);
        loop {
            let changed = log.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.ready() {
                Ready::Now(next) => return Some(next),
                Ready::Closed => return None,
                Ready::Later => changed.await,
            }
        }
    }

    fn ready(&mut self) -> Ready {
        if std::mem::take(&mut self.is_strange) {
            return Ready::Now(Next::Lost { events: None });
        }
        let ring = self.log.lock();
        let oldest = ring.next - ring.kept.len() as u64;
        if self.position < oldest {
            // Nobody knows whose they were.
            let events = self.caller.is_admin().then_some(oldest - self.position);
            self.position = oldest;
            return Ready::Now(Next::Lost { events });
        }
        let index = usize::try_from(self.position - oldest).unwrap_or(usize::MAX);
        for event in ring.kept.range(index.min(ring.kept.len())..) {
            self.position += 1;
            if event.is_for(&self.caller) {
                return Ready::Now(Next::Event(Arc::clone(event)));
            }
        }
        if ring.closed { Ready::Closed } else { Ready::Later }
    }
}

enum Ready {
    Now(Next),
    Later,
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::example;

    /// Events that differ in the progress of an operation.
    fn push(log: &EventLog, number: u64) {
        let mut operation = example();
        operation.progress = Some(crate::Progress { done: number, total: 0 });
        log.push(Change::Operation(OperationChange::Progress, Box::new(operation)));
    }

    async fn number(reader: &mut EventReader) -> u64 {
        match reader.next().await {
            Some(Next::Event(event)) => match &*event {
                Change::Operation(_, operation) => operation.progress.unwrap().done,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_reader_gets_each_event_once_and_in_order_and_resumes_where_it_was() {
        let log = EventLog::starting_with(100);
        push(&log, 0);
        let mut reader = log.reader(None, Caller::default());
        (1..=3).for_each(|n| push(&log, n));
        assert_eq!((number(&mut reader).await, number(&mut reader).await), (1, 2));
        let last = reader.last();
        drop(reader);
        push(&log, 4);
        let mut resumed = log.reader(Some(last), Caller::default());
        assert_eq!((number(&mut resumed).await, number(&mut resumed).await), (3, 4));
        log.close();
        assert!(resumed.next().await.is_none());
    }

    #[tokio::test]
    async fn a_reader_that_waited_before_any_event_resumes_without_a_loss() {
        let log = EventLog::starting_with(100);
        let last = log.reader(None, Caller::default()).last();
        push(&log, 7);
        assert_eq!(number(&mut log.reader(Some(last), Caller::default())).await, 7);
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_many_events_it_missed_and_the_ring_stays_bounded() {
        let log = EventLog::starting_with(100);
        let mut slow = log.reader(None, Caller::default());
        let kept = limit::EVENTS_KEPT as u64;
        (0..kept + 5).for_each(|n| push(&log, n));
        assert_eq!(log.lock().kept.len(), limit::EVENTS_KEPT);
        let lost = slow.next().await;
        assert!(matches!(lost, Some(Next::Lost { events: Some(5) })), "{lost:?}");
        assert_eq!(number(&mut slow).await, 5, "all that is kept follows");
    }

    #[tokio::test]
    async fn a_number_of_another_daemon_is_recognised_and_followed_by_all_that_is_kept() {
        let log = EventLog::starting_with(5 * NUMBERS_PER_SECOND);
        push(&log, 1);
        let later = 5 * NUMBERS_PER_SECOND + 77;
        for strange in [0, 4 * NUMBERS_PER_SECOND + 1234, later, u64::MAX] {
            let mut reader = log.reader(Some(strange), Caller::default());
            let lost = reader.next().await;
            assert!(matches!(lost, Some(Next::Lost { events: None })), "{strange}: {lost:?}");
            assert_eq!(number(&mut reader).await, 1);
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let log = EventLog::starting_with(100);
        let mut reader = log.reader(None, Caller::default());
        let waiting = tokio::spawn(async move { number(&mut reader).await });
        tokio::task::yield_now().await;
        push(&log, 9);
        let woken = tokio::time::timeout(std::time::Duration::from_secs(10), waiting);
        assert_eq!(woken.await.unwrap().unwrap(), 9);
    }
}
