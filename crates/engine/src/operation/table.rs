//! All operations: those that run, and the last ones that ended; and what the work of one holds, to
//! tell its steps and to learn that it is cancelled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use forkd_types::{
    OperationId, OperationKind, OperationState, Owner, SandboxId, SnapshotTag, limit,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::description::{Operation, Progress, ends_with_daemon};
use super::watcher::Watcher;
use crate::EngineError;
use crate::events::{Change, EventLog, OperationChange};

/// What an operation is about, and whose it is. Without more it is the daemon's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    owner: Owner,
    snapshot: Option<SnapshotTag>,
    sandbox: Option<SandboxId>,
}

impl Subject {
    /// Of a snapshot, and of its owner's.
    pub(crate) fn of_snapshot(tag: &SnapshotTag) -> Self {
        Self { owner: tag.owner().clone(), snapshot: Some(tag.clone()), sandbox: None }
    }

    /// Of a snapshot, for `owner`, who may only look at it.
    pub(crate) fn of_seen_snapshot(tag: &SnapshotTag, owner: Owner) -> Self {
        Self { owner, ..Self::of_snapshot(tag) }
    }

    /// Of a snapshot of `owner`'s whose tag is not known yet.
    pub(crate) fn of_owner(owner: Owner) -> Self {
        Self { owner, snapshot: None, sandbox: None }
    }

    /// Of a snapshot that is taken of a sandbox, and of the snapshot's owner.
    pub(crate) fn of_branch(tag: &SnapshotTag, sandbox: &SandboxId) -> Self {
        Self { sandbox: Some(sandbox.clone()), ..Self::of_snapshot(tag) }
    }

    /// Of a sandbox, and of its owner.
    pub(crate) fn of_sandbox(sandbox: &SandboxId, owner: Owner) -> Self {
        Self { owner, snapshot: None, sandbox: Some(sandbox.clone()) }
    }
}

/// All operations.
#[derive(Debug)]
pub(crate) struct Operations {
    table: Mutex<Table>,
    changed: Notify,
    events: Arc<EventLog>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<OperationId, Entry>,
    /// Those that ended, the oldest first.
    ended: VecDeque<OperationId>,
}

#[derive(Debug)]
struct Entry {
    operation: Operation,
    cancellation: Cancellation,
}

/// Whether an operation can be cancelled.
#[derive(Debug)]
enum Cancellation {
    /// It can; the work looks at the token.
    Possible(CancellationToken),
    /// It has come too far.
    TooLate(&'static str),
}

impl Operations {
    pub(crate) fn new(events: Arc<EventLog>) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), changed: Notify::new(), events })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation under an id that nobody has used.
    pub(crate) fn start(
        self: &Arc<Self>,
        id: OperationId,
        kind: OperationKind,
        subject: Subject,
    ) -> Running {
        let token = CancellationToken::new();
        self.insert(id, kind, subject, Cancellation::Possible(token.clone()), token)
    }

    /// Begins an operation that cannot be cancelled, and `why`.
    pub(crate) fn start_committed(
        self: &Arc<Self>,
        kind: OperationKind,
        subject: Subject,
        why: &'static str,
    ) -> Running {
        let (id, token) = (OperationId::random(), CancellationToken::new());
        self.insert(id, kind, subject, Cancellation::TooLate(why), token)
    }

    fn insert(
        self: &Arc<Self>,
        id: OperationId,
        kind: OperationKind,
        subject: Subject,
        cancellation: Cancellation,
        token: CancellationToken,
    ) -> Running {
        let operation = Operation {
            id: id.clone(),
            owner: subject.owner,
            kind,
            state: OperationState::Running,
            step: "wait",
            progress: None,
            snapshot_tag: subject.snapshot,
            sandbox_id: subject.sandbox,
            created_at: SystemTime::now(),
            ended_at: None,
            error: None,
        };
        let mut table = self.lock();
        self.tell(OperationChange::Started, &operation);
        table.entries.insert(id.clone(), Entry { operation, cancellation });
        drop(table);
        Running::new(Arc::clone(self), id, token)
    }

    fn tell(&self, change: OperationChange, operation: &Operation) {
        self.events.push(Change::Operation(change, Box::new(operation.clone())));
    }

    /// Changes an operation that runs.
    fn update(&self, id: &OperationId, change: impl FnOnce(&mut Operation)) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(id) else { return };
        if entry.operation.state == OperationState::Running {
            change(&mut entry.operation);
            self.tell(OperationChange::Progress, &entry.operation);
        }
    }

    /// From now on the operation cannot be cancelled, unless it has been.
    fn commit(&self, id: &OperationId, why: &'static str) -> Result<(), EngineError> {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(id) else { return Ok(()) };
        match &entry.cancellation {
            Cancellation::Possible(token) if token.is_cancelled() => {
                Err(EngineError::Cancelled { id: id.clone() })
            }
            Cancellation::Possible(_) | Cancellation::TooLate(_) => {
                entry.cancellation = Cancellation::TooLate(why);
                Ok(())
            }
        }
    }

    /// Ends an operation. Only the first end counts.
    fn finish(&self, id: &OperationId, error: Option<EngineError>) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(id) else { return };
        let operation = &mut entry.operation;
        if operation.state != OperationState::Running {
            return;
        }
        operation.state = match &error {
            None => OperationState::Succeeded,
            Some(EngineError::Cancelled { id: cancelled }) if cancelled == id => {
                OperationState::Cancelled
            }
            Some(_) => OperationState::Failed,
        };
        operation.ended_at = Some(SystemTime::now());
        operation.error = error.filter(|_| operation.state == OperationState::Failed);
        self.tell(OperationChange::Ended, operation);
        table.ended.push_back(id.clone());
        if table.ended.len() > limit::OPERATIONS_ENDED_KEPT
            && let Some(oldest) = table.ended.pop_front()
        {
            table.entries.remove(&oldest);
        }
        drop(table);
        self.changed.notify_waiters();
    }

    /// Asks an operation to stop; it ends as `cancelled` once what it has done is undone.
    pub(crate) fn cancel(&self, id: &OperationId) -> Result<Operation, EngineError> {
        let mut table = self.lock();
        let unknown = || EngineError::UnknownOperation { id: id.clone() };
        let entry = table.entries.get_mut(id).ok_or_else(unknown)?;
        let refused = |reason| EngineError::NotCancellable { id: id.clone(), reason };
        let state = entry.operation.state;
        if state != OperationState::Running {
            return Err(refused(format!("it is {state} already")));
        }
        match &entry.cancellation {
            Cancellation::TooLate(why) => return Err(refused((*why).to_owned())),
            Cancellation::Possible(token) => token.cancel(),
        }
        entry.operation.step = "cancel";
        self.tell(OperationChange::Progress, &entry.operation);
        Ok(entry.operation.clone())
    }

    pub(crate) fn get(&self, id: &OperationId) -> Result<Operation, EngineError> {
        let operation = self.lock().entries.get(id).map(|entry| entry.operation.clone());
        operation.ok_or_else(|| EngineError::UnknownOperation { id: id.clone() })
    }

    /// All that are known, oldest first.
    pub(crate) fn list(&self) -> Vec<Operation> {
        let table = self.lock();
        let mut all: Vec<_> = table.entries.values().map(|entry| entry.operation.clone()).collect();
        drop(table);
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// Waits until an operation has ended.
    pub(crate) async fn finished(&self, id: &OperationId) -> Result<Operation, EngineError> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let operation = self.get(id)?;
            if operation.state != OperationState::Running {
                return Ok(operation);
            }
            changed.await;
        }
    }

    /// Cancels what the end of the daemon would leave half done.
    pub(crate) fn cancel_makers(&self) {
        for operation in self.list() {
            let runs = operation.state == OperationState::Running;
            if runs && ends_with_daemon(operation.kind) && self.cancel(&operation.id).is_ok() {
                tracing::info!(operation = %operation.id, "cancelled, because the daemon ends");
            }
        }
    }
}

/// An operation under way. When this is dropped before its end, the work has died: the operation
/// has failed.
#[derive(Debug)]
pub(crate) struct Running {
    operations: Arc<Operations>,
    id: OperationId,
    cancelled: CancellationToken,
}

impl Running {
    const fn new(
        operations: Arc<Operations>,
        id: OperationId,
        cancelled: CancellationToken,
    ) -> Self {
        Self { operations, id, cancelled }
    }

    pub(crate) const fn id(&self) -> &OperationId {
        &self.id
    }

    /// A new step has begun.
    pub(crate) fn step(&self, step: &'static str) {
        self.operations.update(&self.id, |operation| {
            operation.step = step;
            operation.progress = None;
        });
    }

    /// So many parts of the step are done.
    pub(crate) fn progress(&self, done: u64, total: u64) {
        let progress = Some(Progress { done, total });
        self.operations.update(&self.id, |operation| operation.progress = progress);
    }

    /// For work on a thread of its own.
    pub(crate) fn watcher(&self) -> Arc<Watcher> {
        let (operations, id) = (Arc::clone(&self.operations), self.id.clone());
        let tell = move |progress| operations.update(&id, |entry| entry.progress = Some(progress));
        Arc::new(Watcher::new(tell, self.cancelled.clone()))
    }

    /// The error to stop with when somebody has cancelled the operation.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        if self.cancelled.is_cancelled() {
            return Err(EngineError::Cancelled { id: self.id.clone() });
        }
        Ok(())
    }

    /// The point of no return: whoever cancels later is told `why` not.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`] when somebody was earlier.
    pub(crate) fn commit(&self, why: &'static str) -> Result<(), EngineError> {
        self.operations.commit(&self.id, why)
    }

    /// Waits for `work`, which is dropped when the operation is cancelled.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, EngineError> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(EngineError::Cancelled { id: self.id.clone() }),
            value = work => Ok(value),
        }
    }

    /// It is over.
    pub(crate) fn finish<T>(&self, result: &Result<T, EngineError>) {
        self.operations.finish(&self.id, result.as_ref().err().cloned());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let died = EngineError::Internal("its work ended without a result".to_owned());
        self.operations.finish(&self.id, Some(died));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Next;

    fn operations() -> Arc<Operations> {
        Operations::new(EventLog::new())
    }

    fn begin(operations: &Arc<Operations>) -> Running {
        operations.start(OperationId::random(), OperationKind::Branch, Subject::default())
    }

    fn failure() -> EngineError {
        EngineError::Internal("broken".to_owned())
    }

    #[test]
    fn only_so_many_ended_operations_are_kept_and_running_ones_are_never_forgotten() {
        let all = operations();
        let running = begin(&all);
        let first = begin(&all);
        let first_id = first.id().clone();
        first.finish(&Ok::<_, EngineError>(()));
        for _ in 0..limit::OPERATIONS_ENDED_KEPT {
            assert!(all.get(&first_id).is_ok());
            begin(&all).finish(&Ok::<_, EngineError>(()));
        }
        assert!(matches!(all.get(&first_id), Err(EngineError::UnknownOperation { .. })));
        assert_eq!(all.list().len(), limit::OPERATIONS_ENDED_KEPT + 1);
        assert_eq!(all.get(running.id()).unwrap().state, OperationState::Running);
    }

    #[test]
    fn an_operation_that_was_cancelled_cannot_commit_and_one_that_did_cannot_be_cancelled() {
        let all = operations();
        let early = begin(&all);
        assert_eq!(all.cancel(early.id()).unwrap().step, "cancel");
        let error = early.commit("it has gone too far").unwrap_err();
        early.finish(&Err::<(), _>(error));
        assert_eq!(all.get(early.id()).unwrap().state, OperationState::Cancelled);

        let late = begin(&all);
        late.commit("it has gone too far").unwrap();
        let refusal = all.cancel(late.id()).unwrap_err().to_string();
        assert!(refusal.contains("it has gone too far"), "{refusal}");
        late.finish(&Ok::<_, EngineError>(()));
        let refusal = all.cancel(late.id()).unwrap_err().to_string();
        assert!(refusal.contains("it is succeeded already"), "{refusal}");
    }

    #[test]
    fn another_operations_cancellation_is_a_failure() {
        let all = operations();
        let running = begin(&all);
        let other = EngineError::Cancelled { id: OperationId::random() };
        running.finish(&Err::<(), _>(other));
        assert_eq!(all.get(running.id()).unwrap().state, OperationState::Failed);
    }

    #[test]
    fn only_the_first_end_counts_and_work_that_dies_is_a_failure() {
        let all = operations();
        let failed = begin(&all);
        let id = failed.id().clone();
        failed.finish(&Err::<(), _>(failure()));
        drop(failed);
        let operation = all.get(&id).unwrap();
        assert_eq!(operation.error.unwrap().to_string(), failure().to_string());

        let died = begin(&all);
        let id = died.id().clone();
        drop(died);
        assert_eq!(all.get(&id).unwrap().state, OperationState::Failed);
    }

    #[tokio::test]
    async fn waiting_ends_with_the_operation_and_work_that_waits_hears_of_its_cancellation() {
        let all = operations();
        let running = begin(&all);
        let id = running.id().clone();
        let waiting = {
            let (all, id) = (Arc::clone(&all), id.clone());
            tokio::spawn(async move { all.finished(&id).await.unwrap() })
        };
        let work = tokio::spawn(async move {
            let result = running.unless_cancelled(std::future::pending::<()>()).await;
            running.finish(&result);
        });
        tokio::task::yield_now().await;
        all.cancel(&id).unwrap();
        let soon = std::time::Duration::from_secs(10);
        let ended = tokio::time::timeout(soon, waiting).await.unwrap().unwrap();
        assert_eq!(ended.state, OperationState::Cancelled);
        assert!(ended.error.is_none() && ended.ended_at.is_some());
        work.await.unwrap();
    }

    #[tokio::test]
    async fn every_change_is_an_event() {
        let events = EventLog::new();
        let mut reader = events.reader(None, crate::Caller::default());
        let all = Operations::new(Arc::clone(&events));
        let running = begin(&all);
        running.step("prepare");
        running.progress(1, 2);
        running.finish(&Ok::<_, EngineError>(()));
        running.step("nothing of what comes after the end is told");
        drop(running);
        events.close();
        let mut names = Vec::new();
        while let Some(Next::Event(change)) = reader.next().await {
            names.push(change.name());
        }
        let progress = "operation.progress";
        assert_eq!(names, ["operation.started", progress, progress, "operation.ended"]);
    }
}
