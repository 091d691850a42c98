//! What can be asked of operations, and the requests that are answered before they are done.

use std::sync::Arc;
use std::time::Duration;

use forkd_types::{OperationId, SnapshotTag};
use tokio::task::JoinHandle;

use crate::events::EventReader;
use crate::{
    Engine, EngineError, Operation, ProgressSink, Snapshot, TemplateImage, TemplateRequest,
};

/// A request that is under way. It goes on when this is dropped.
#[derive(Debug)]
pub struct Begun {
    /// The snapshot that it makes, still being written.
    pub snapshot: Snapshot,
    outcome: JoinHandle<Result<(), EngineError>>,
}

impl Begun {
    /// Waits until it is over.
    ///
    /// # Errors
    /// What the work ended with.
    pub async fn finished(self) -> Result<(), EngineError> {
        let died = |error: tokio::task::JoinError| EngineError::Internal(error.to_string());
        self.outcome.await.map_err(died)?
    }
}

impl Engine {
    /// All operations that run, and the last ones that ended, oldest first.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let mut all = self.operations.list();
        all.retain(|operation| self.caller.sees_operation(operation));
        all
    }

    /// One operation.
    ///
    /// # Errors
    /// [`EngineError::UnknownOperation`].
    pub fn operation(&self, id: &OperationId) -> Result<Operation, EngineError> {
        self.visible_operation(id)
    }

    /// Waits until an operation has ended, or for as long as `within`: then it is still running.
    ///
    /// # Errors
    /// [`EngineError::UnknownOperation`].
    pub async fn wait_operation(
        &self,
        id: &OperationId,
        within: Duration,
    ) -> Result<Operation, EngineError> {
        self.visible_operation(id)?;
        match tokio::time::timeout(within, self.operations.finished(id)).await {
            Ok(ended) => ended,
            Err(_) => self.operation(id),
        }
    }

    /// Asks an operation to stop. It ends as `cancelled` once what it has done is undone.
    ///
    /// # Errors
    /// [`EngineError::UnknownOperation`], [`EngineError::NotCancellable`].
    pub fn cancel_operation(&self, id: &OperationId) -> Result<Operation, EngineError> {
        self.visible_operation(id)?;
        self.operations.cancel(id)
    }

    /// What happens from now on, or has happened since the event `last`.
    #[must_use]
    pub fn events(&self, last: Option<u64>) -> EventReader {
        self.events.reader(last, self.caller.clone())
    }

    /// Begins to build a template: see [`Engine::build_template`].
    ///
    /// # Errors
    /// What can be said without booting anything.
    pub fn begin_template(
        &self,
        request: TemplateRequest,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<Begun, EngineError> {
        let tag = request.tag.clone();
        self.caller.check_new("tag", &tag)?;
        let shared = request.shared;
        if shared && !self.caller.is_admin() {
            return Err(EngineError::AdminOnly { what: "sharing a snapshot" });
        }
        if matches!(request.image, TemplateImage::Reference(_)) && !self.caller.is_admin() {
            return Err(EngineError::AdminOnly { what: "building from an image reference" });
        }
        let work = self.lifecycle.begin_template(request, progress)?;
        if shared && let Err(error) = self.snapshots.catalog.update(&tag, |row| row.shared = true) {
            self.snapshots.catalog.remove(&tag)?;
            return Err(error);
        }
        self.begun(&tag, work)
    }

    /// Begins to compact a snapshot: see [`Engine::compact_snapshot`].
    ///
    /// # Errors
    /// What can be said without copying anything.
    pub fn begin_compact(&self, tag: &SnapshotTag, to: &SnapshotTag) -> Result<Begun, EngineError> {
        self.caller.check_new("to", to)?;
        self.visible_snapshot(tag)?;
        let work = self.snapshots.begin_compact(tag, to)?;
        self.begun(to, work)
    }

    fn begun(
        &self,
        tag: &SnapshotTag,
        work: impl Future<Output = Result<(), EngineError>> + Send + 'static,
    ) -> Result<Begun, EngineError> {
        let snapshot = self.snapshot(tag)?;
        // A task of its own: a client that goes away must not leave half a snapshot.
        Ok(Begun { snapshot, outcome: self.background.spawn(work) })
    }
}
