//! Forks, branches, and the removal of sandboxes.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forkd_store::SnapshotManifest;
use forkd_types::{ByteCount, OperationId, SandboxId, SandboxState, SnapshotTag, TagName, limit};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::operation::{OperationKind, Running, Subject};
use crate::sandboxes::{BranchOrder, Place, Request, RequestKind, SandboxHandle};
use crate::{Branch, BranchRequest, Engine, EngineError, Sandbox, SandboxOptions, Wait, describe};

impl Engine {
    /// All sandboxes, oldest first.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        let mut all: Vec<Sandbox> = self.all_visible().iter().map(|h| h.sandbox()).collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// One sandbox.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`].
    pub fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, EngineError> {
        self.visible(id).map(|handle| handle.sandbox())
    }

    /// Starts `count` children of a snapshot: all or none.
    ///
    /// # Errors
    /// The first error; children that were started are removed.
    pub async fn fork(&self, tag: &SnapshotTag, count: u32) -> Result<Vec<Sandbox>, EngineError> {
        self.fork_with(tag, count, SandboxOptions::default()).await
    }

    /// The same, with what the creator wants of each.
    ///
    /// # Errors
    /// As [`Self::fork`].
    pub async fn fork_with(
        &self,
        tag: &SnapshotTag,
        count: u32,
        options: SandboxOptions,
    ) -> Result<Vec<Sandbox>, EngineError> {
        let options = SandboxOptions { owner: self.caller.owner().clone(), ..options };
        self.lifecycle.host.confiner.check(&options)?;
        let mut started = Vec::new();
        let mut failed = None;
        let memory = self.ready_row(tag)?.manifest.memory;
        let places = self.places(count, memory)?;
        for result in self.start_children(tag, places, &options).await {
            match result {
                Ok(sandbox) => started.push(sandbox),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        let Some(error) = failed else { return Ok(started) };
        for sandbox in started {
            self.remove_sandbox(&sandbox.id).await?;
        }
        Err(error)
    }

    /// Places for children, before anything is done for them.
    fn places(&self, count: u32, memory: ByteCount) -> Result<Vec<Place>, EngineError> {
        if count > limit::CHILDREN_PER_REQUEST_MAX {
            let problem = format!("{count} is more than {}", limit::CHILDREN_PER_REQUEST_MAX);
            return Err(EngineError::BadRequest { field: "n", problem });
        }
        self.all_sandboxes.admission.sandboxes(self.caller.owner(), count, memory)
    }

    async fn start_children(
        &self,
        tag: &SnapshotTag,
        places: Vec<Place>,
        options: &SandboxOptions,
    ) -> Vec<Result<Sandbox, EngineError>> {
        let start = |place| {
            let lifecycle = Arc::clone(&self.lifecycle);
            let (tag, options) = (tag.clone(), options.clone());
            let start = async move { lifecycle.start_child(&tag, place, options).await };
            // A task of its own: a client that goes away must not leave half a child.
            self.background.spawn(start.in_current_span())
        };
        let tasks: Vec<_> = places.into_iter().map(start).collect();
        let mut results = Vec::with_capacity(tasks.len());
        for task in tasks {
            let result = task.await;
            results.push(result.unwrap_or_else(|e| Err(EngineError::Internal(e.to_string()))));
        }
        results
    }

    /// Removes a sandbox: its VM ends at once.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`].
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), EngineError> {
        let (done, removed) = oneshot::channel();
        self.visible(id)?.request(Request::Remove(done))?;
        removed.await.map_err(|_| EngineError::UnknownSandbox { id: id.clone() })
    }

    /// Takes a branch of a running sandbox, and starts children from it.
    ///
    /// # Errors
    /// See [`EngineError`]. The source runs on in any case, unless its VMM died.
    pub async fn branch(
        &self,
        id: &SandboxId,
        request: BranchRequest,
    ) -> Result<Branch, EngineError> {
        let requested_at = Instant::now();
        let handle = self.used(id)?;
        if handle.sandbox().state == SandboxState::Dead {
            return Err(handle.not_running());
        }
        if request.wait == Wait::UntilResumed && request.children > 0 {
            let problem = "children can only be started when the snapshot is waited for".to_owned();
            return Err(EngineError::BadRequest { field: "n", problem });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tag = request
            .tag
            .unwrap_or_else(|| TagName::for_branch(id, now).said_by(self.caller.owner()));
        self.caller.check_new("tag", &tag)?;
        let place = self.all_sandboxes.admission.branch()?;
        // Its snapshot may have been removed by force.
        let memory = handle.origin().ok_or_else(|| handle.not_running())?.memory;
        let places = self.places(request.children, memory)?;
        let queued = handle.place_for(RequestKind::Branch)?;
        let operation = self.reserve_branch(&handle, &tag)?;
        let (resumed, has_resumed) = oneshot::channel();
        let (done, outcome) = oneshot::channel();
        queued.complete(Request::Branch(Box::new(BranchOrder {
            tag: tag.clone(),
            mode: request.mode,
            requested_at,
            operation,
            place,
            source: handle.use_guard(),
            resumed,
            done,
        })));
        if request.wait == Wait::UntilResumed && has_resumed.await.is_ok() {
            return Ok(Branch { snapshot: self.snapshot(&tag)?, children: Vec::new() });
        }
        let result = outcome.await.unwrap_or_else(|_| Err(handle.not_running()));
        if let Err(error) = result {
            self.snapshots.catalog.fail(&tag, &describe(&error));
            return Err(error);
        }
        let owner = self.caller.owner().clone();
        let options = SandboxOptions { owner, ..SandboxOptions::default() };
        let children = self.start_children(&tag, places, &options).await;
        Ok(Branch { snapshot: self.snapshot(&tag)?, children })
    }

    fn reserve_branch(
        &self,
        handle: &SandboxHandle,
        tag: &SnapshotTag,
    ) -> Result<Running, EngineError> {
        let origin = handle.origin().ok_or_else(|| handle.not_running())?;
        let manifest = SnapshotManifest {
            layers: Vec::new(),
            overlays: Vec::new(),
            device_state: None,
            parent_tag: self.origin_of(handle.id()),
            branched_from: Some(handle.id().clone()),
            ..origin
        };
        let id = OperationId::random();
        self.snapshots.reserve(tag, manifest, &id)?;
        let subject = Subject::of_branch(tag, handle.id());
        Ok(self.operations.start(id, OperationKind::Branch, subject))
    }
}
