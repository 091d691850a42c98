//! The facade: what can be asked of forkd.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forkd_store::{
    FileSet, Layer, MachineIdentity, Registry, SnapshotManifest, SnapshotRow, StoreError,
    StoreFiles, recover,
};
use forkd_types::{ByteCount, LayerId, OperationId, SandboxId, SandboxState, SnapshotTag, limit};
use forkd_vmm::{Accelerator, VmmTools};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::admission::{Admission, Place};
use crate::branch::{self, BranchOrder};
use crate::catalog::Catalog;
use crate::confine::Confiner;
use crate::events::EventLog;
use crate::guest::{EvalOutput, EvalRequest, ExecOutput, ExecRequest, FileWrite, Pulse};
use crate::operation::{OperationKind, Operations, Running, Subject};
use crate::sandbox::{InUse, Order, SandboxHandle, start_child};
use crate::usage::Tally;
use crate::vmm_memory::VmmMemories;
use crate::{
    AtShutDown, Branch, BranchRequest, DeletePolicy, EngineConfig, EngineError, ImageInfo,
    ProgressSink, Sandbox, SandboxOptions, Snapshot, TemplateRequest, Wait, accelerator, hot,
    images, reconcile,
};

/// Everything that one daemon owns. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: EngineConfig,
    pub(crate) files: StoreFiles,
    pub(crate) registry: Registry,
    pub(crate) catalog: Catalog,
    pub(crate) admission: Arc<Admission>,
    pub(crate) confiner: Confiner,
    pub(crate) operations: Arc<Operations>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) tally: Tally,
    pub(crate) vmm_memories: VmmMemories,
    pub(crate) accelerator: Accelerator,
    pub(crate) tools: VmmTools,
    pub(crate) machine: MachineIdentity,
    /// Bounds how many children load at the same time.
    pub(crate) starting: Semaphore,
    /// One snapshot is published at a time: more would only compete for the disk.
    pub(crate) publishing: Semaphore,
    /// One snapshot is compacted at a time.
    pub(crate) compacting: Semaphore,
    /// One mapping view is made at a time in the background.
    pub(crate) viewing: Semaphore,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Cancelled when the engine shuts down: work in the background that nobody asked for stops.
    pub(crate) ending: CancellationToken,
    /// Cancelled when the snapshots that were there at the start have been checked.
    pub(crate) checked: CancellationToken,
    holds: Mutex<Vec<FileSet>>,
    sandboxes: Mutex<BTreeMap<SandboxId, Arc<SandboxHandle>>>,
}

/// Time that a read or a write of a guest file may take.
pub(crate) const FILE_DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);
/// Time that a ping may take.
const PING_DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);

impl Engine {
    /// Opens the store, deals with what an earlier daemon left, and chooses the accelerator.
    ///
    /// # Errors
    /// When a directory or the registry cannot be used, or QEMU is missing.
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let files = StoreFiles::open(&config.state_dir, &config.hot_dir)?;
        let run_dir = config.run_dir.clone();
        fs::create_dir_all(&run_dir).map_err(|source| StoreError::File {
            what: "create directory",
            path: run_dir,
            source,
        })?;
        let registry = Registry::open(&files.registry())?;
        let confiner = Confiner::open(&config.state_dir)?;
        let heritage = reconcile::take_stock(&registry, &files, &config.run_dir)?;
        let rows = recover(&registry, &files)?;
        let chosen = accelerator::choose(&config).await?;
        let events = EventLog::new();
        let inner = Inner {
            catalog: Catalog::new(rows, files.state().to_owned(), Arc::clone(&events)),
            admission: Admission::new(config.limits),
            confiner,
            operations: Operations::new(Arc::clone(&events)),
            events,
            tally: Tally::default(),
            vmm_memories: VmmMemories::default(),
            files,
            registry,
            accelerator: chosen.accelerator,
            tools: chosen.tools,
            machine: chosen.identity,
            starting: Semaphore::new(limit::CHILDREN_STARTING_MAX),
            publishing: Semaphore::new(1),
            compacting: Semaphore::new(1),
            viewing: Semaphore::new(1),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            ending: CancellationToken::new(),
            checked: CancellationToken::new(),
            holds: Mutex::default(),
            sandboxes: Mutex::new(BTreeMap::new()),
            config,
        };
        let inner = Arc::new(inner);
        reconcile::adopt_sandboxes(&inner, heritage).await;
        reconcile::sweep_files(&inner);
        hot::settle_in_background(&inner);
        Ok(Self { inner })
    }

    /// Cancels what makes snapshots, removes all sandboxes or leaves them to the next engine on the
    /// same directories, and waits for work in the background.
    pub async fn shut_down(&self, sandboxes: AtShutDown) {
        self.inner.operations.cancel_makers();
        self.inner.ending.cancel();
        for handle in self.inner.sandboxes() {
            let (done, finished) = oneshot::channel();
            let order = match sandboxes {
                AtShutDown::Remove => Order::Remove(done),
                AtShutDown::Leave => Order::Release(done),
            };
            handle.queue_last(order).await;
            // Its task may have ended without an answer: then nothing is left to be done.
            finished.await.ok();
        }
        self.inner.starting.close();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.events.close();
    }

    /// Waits until the snapshots that were there at the start have been checked, which goes on in
    /// the background.
    pub async fn wait_checked(&self) {
        self.inner.checked.cancelled().await;
    }

    /// What executes guests here.
    #[must_use]
    pub fn accelerator(&self) -> Accelerator {
        self.inner.accelerator
    }

    /// The images that templates can be built from.
    #[must_use]
    pub fn images(&self) -> Vec<ImageInfo> {
        images::list(&self.inner.config.image_dir)
    }

    /// Boots an image, warms it up, and freezes it as a snapshot.
    ///
    /// # Errors
    /// See [`EngineError`]; nothing is left of a template that failed.
    pub async fn build_template(
        &self,
        request: TemplateRequest,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<Snapshot, EngineError> {
        let tag = request.tag.clone();
        self.begin_template(request, progress)?.finished().await?;
        self.snapshot(&tag)
    }

    /// All snapshots, oldest first.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.inner.catalog.view_all()
    }

    /// One snapshot.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`].
    pub fn snapshot(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        self.inner.catalog.view(tag)
    }

    /// Waits until a snapshot is usable.
    ///
    /// # Errors
    /// [`EngineError::SnapshotNotReady`] when it fails instead.
    pub async fn wait_ready(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        self.inner.catalog.settled(tag).await?;
        self.snapshot(tag)
    }

    /// Makes the snapshot `to` of `tag`: the same state, depending on no other snapshot.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`], [`EngineError::SnapshotNotReady`],
    /// [`EngineError::TagTaken`], or what went wrong; `to` is `failed` then, with the reason, and
    /// has no files.
    pub async fn compact_snapshot(
        &self,
        tag: &SnapshotTag,
        to: &SnapshotTag,
    ) -> Result<Snapshot, EngineError> {
        self.begin_compact(tag, to)?.finished().await?;
        self.snapshot(to)
    }

    /// Removes a snapshot, and what nothing else needs of it. With [`DeletePolicy::Force`] what
    /// depends on it keeps working: layers and overlays stay for as long as anything lists them.
    ///
    /// # Errors
    /// [`EngineError::SnapshotInUse`] names sandboxes and snapshots that build on it.
    pub async fn delete_snapshot(
        &self,
        tag: &SnapshotTag,
        policy: DeletePolicy,
    ) -> Result<(), EngineError> {
        let row = self.inner.catalog.get(tag)?;
        let (snapshots, sandboxes) = self.inner.dependents(tag);
        let names = snapshots.iter().map(ToString::to_string);
        let names: Vec<String> = names.chain(sandboxes.iter().map(ToString::to_string)).collect();
        if !names.is_empty() && policy == DeletePolicy::Refuse {
            let dependents = names.join(", ");
            return Err(EngineError::SnapshotInUse { tag: tag.clone(), dependents });
        }
        if policy == DeletePolicy::Cascade {
            self.remove_dependents(snapshots, sandboxes).await?;
        }
        self.inner.catalog.remove(&self.inner.registry, tag)?;
        self.inner.collect(&FileSet::from(&row.manifest));
        Ok(())
    }

    async fn remove_dependents(
        &self,
        snapshots: Vec<SnapshotTag>,
        sandboxes: Vec<SandboxId>,
    ) -> Result<(), EngineError> {
        for id in sandboxes {
            match self.remove_sandbox(&id).await {
                Ok(()) | Err(EngineError::UnknownSandbox { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for tag in snapshots {
            match Box::pin(self.delete_snapshot(&tag, DeletePolicy::Cascade)).await {
                Ok(()) | Err(EngineError::UnknownSnapshot { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// All sandboxes, oldest first.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<Sandbox> {
        let mut all: Vec<Sandbox> = self.inner.sandboxes().iter().map(|h| h.sandbox()).collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// All layers and overlays that sandboxes run over or build their next branch on. Some
    /// are in no snapshot: those that were merged for the next branch.
    #[must_use]
    pub fn held_by_sandboxes(&self) -> FileSet {
        self.inner.held_by_sandboxes()
    }

    /// One sandbox.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`].
    pub fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, EngineError> {
        self.inner.handle(id).map(|handle| handle.sandbox())
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
        self.inner.confiner.check(&options)?;
        let mut started = Vec::new();
        let mut failed = None;
        let memory = self.inner.catalog.ready(tag)?.manifest.memory;
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
        self.inner.admission.sandboxes(count, memory)
    }

    async fn start_children(
        &self,
        tag: &SnapshotTag,
        places: Vec<Place>,
        options: &SandboxOptions,
    ) -> Vec<Result<Sandbox, EngineError>> {
        let start = |place| {
            let (inner, tag, options) = (Arc::clone(&self.inner), tag.clone(), options.clone());
            let start = async move { start_child(&inner, &tag, place, options).await };
            // A task of its own: a client that goes away must not leave half a child.
            self.inner.tasks.spawn(start.in_current_span())
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
        let handle = self.inner.handle(id)?;
        let (done, removed) = oneshot::channel();
        handle.queue()?.send(Order::Remove(done));
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
        let handle = self.inner.used(id)?;
        if handle.sandbox().state == SandboxState::Dead {
            return Err(handle.not_running());
        }
        if request.wait == Wait::UntilResumed && request.children > 0 {
            let problem = "children can only be started when the snapshot is waited for".to_owned();
            return Err(EngineError::BadRequest { field: "n", problem });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tag = request.tag.unwrap_or_else(|| SnapshotTag::for_branch(id, now));
        let place = self.inner.admission.branch()?;
        let memory = self.inner.catalog.get(&handle.sandbox().snapshot_tag)?.manifest.memory;
        let places = self.places(request.children, memory)?;
        let queued = handle.queue()?;
        let operation = self.reserve_branch(&handle, &tag)?;
        let (resumed, has_resumed) = oneshot::channel();
        let (done, outcome) = oneshot::channel();
        let order = BranchOrder {
            tag: tag.clone(),
            mode: request.mode,
            requested_at,
            operation,
            place,
            source: self.inner.used(id)?,
            resumed,
            done,
        };
        queued.send(Order::Branch(Box::new(order)));
        if request.wait == Wait::UntilResumed && has_resumed.await.is_ok() {
            return Ok(Branch { snapshot: self.snapshot(&tag)?, children: Vec::new() });
        }
        let result = outcome.await.unwrap_or_else(|_| Err(handle.not_running()));
        if let Err(error) = result {
            self.inner.catalog.fail(&self.inner.registry, &tag, &branch::describe(&error));
            return Err(error);
        }
        let options = SandboxOptions::default();
        let children = self.start_children(&tag, places, &options).await;
        Ok(Branch { snapshot: self.snapshot(&tag)?, children })
    }

    fn reserve_branch(
        &self,
        handle: &SandboxHandle,
        tag: &SnapshotTag,
    ) -> Result<Running, EngineError> {
        let sandbox = handle.sandbox();
        let origin = handle.origin().ok_or_else(|| handle.not_running())?;
        let is_there = self.inner.origin_of(handle).is_some();
        let manifest = SnapshotManifest {
            layers: Vec::new(),
            overlays: Vec::new(),
            device_state: None,
            parent_tag: is_there.then_some(sandbox.snapshot_tag),
            branched_from: Some(handle.id().clone()),
            ..origin
        };
        let id = OperationId::random();
        self.inner.reserve(tag, manifest, &id)?;
        let subject = Subject { snapshot: Some(tag.clone()), sandbox: Some(handle.id().clone()) };
        Ok(self.inner.operations.start(id, OperationKind::Branch, subject))
    }

    /// Runs a program in a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec(
        &self,
        id: &SandboxId,
        request: ExecRequest,
    ) -> Result<ExecOutput, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.exec(request).await).await
    }

    /// Evaluates Python code in a sandbox's persistent interpreter.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn eval(
        &self,
        id: &SandboxId,
        request: EvalRequest,
    ) -> Result<EvalOutput, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.eval(request).await).await
    }

    /// Asks a sandbox's guest agent for a sign of life.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn ping(&self, id: &SandboxId) -> Result<Pulse, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.ping(PING_DEADLINE).await).await
    }

    /// Reads a file of a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<Vec<u8>, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.read_file(path, FILE_DEADLINE).await).await
    }

    /// Writes a file of a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn write_file(
        &self,
        id: &SandboxId,
        write: FileWrite,
        data: Vec<u8>,
    ) -> Result<(), EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.write_file(write, data, FILE_DEADLINE).await).await
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<SandboxHandle>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_sandbox(&self, handle: Arc<SandboxHandle>) {
        self.lock().insert(handle.id().clone(), handle);
    }

    /// Forgets a sandbox whose VM is gone, and removes what belongs to it alone.
    pub(crate) fn discard_sandbox(&self, handle: &SandboxHandle) {
        let candidates = handle.files();
        self.lock().remove(handle.id());
        handle.leave();
        self.collect(&candidates);
        self.files.remove_vm_directory(handle.id());
        self.remove_run_directory(handle.id());
        if let Err(error) = self.registry.remove_sandbox(handle.id()) {
            tracing::error!(sandbox = %handle.id(), %error, "a removed sandbox keeps its row");
        }
    }

    pub(crate) fn sandboxes(&self) -> Vec<Arc<SandboxHandle>> {
        self.lock().values().cloned().collect()
    }

    /// A sandbox that is looked at.
    pub(crate) fn handle(&self, id: &SandboxId) -> Result<Arc<SandboxHandle>, EngineError> {
        let handle = self.lock().get(id).cloned();
        handle.ok_or_else(|| EngineError::UnknownSandbox { id: id.clone() })
    }

    /// A sandbox that is used until what this gives is dropped.
    pub(crate) fn used(&self, id: &SandboxId) -> Result<InUse, EngineError> {
        self.handle(id).map(InUse::of)
    }

    /// Snapshots and sandboxes that build on `tag`.
    fn dependents(&self, tag: &SnapshotTag) -> (Vec<SnapshotTag>, Vec<SandboxId>) {
        let builds_on = |row: &SnapshotRow| row.manifest.parent_tag.as_ref() == Some(tag);
        let snapshots = self.catalog.list().into_iter().filter(builds_on).map(|row| row.tag);
        let sandboxes = self.sandboxes().into_iter();
        let sandboxes =
            sandboxes.filter(|handle| self.origin_of(handle).is_some_and(|row| row.tag == *tag));
        (snapshots.collect(), sandboxes.map(|handle| handle.id().clone()).collect())
    }

    /// The snapshot that a sandbox was started from, unless it has been removed. One that was made
    /// later is another of the same name.
    fn origin_of(&self, handle: &SandboxHandle) -> Option<SnapshotRow> {
        let row = self.catalog.get(&handle.sandbox().snapshot_tag).ok()?;
        // A sandbox that starts has not got it yet.
        let same = |origin: SnapshotManifest| origin.layers == row.manifest.layers;
        handle.origin().is_none_or(same).then_some(row)
    }

    pub(crate) fn holds(&self) -> MutexGuard<'_, Vec<FileSet>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run_directory(&self, id: &SandboxId) -> PathBuf {
        self.config.run_dir.join(id.as_str())
    }

    pub(crate) fn remove_run_directory(&self, id: &SandboxId) {
        let path = self.run_directory(id);
        if let Err(error) = fs::remove_dir_all(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a VM's directory");
        }
    }

    /// Opens layers in the given order. A hot copy that is gone is made anew from the durable one.
    pub(crate) fn open_chain(&self, layers: &[LayerId]) -> Result<Vec<Layer>, EngineError> {
        let open = |id| self.with_room(|| self.files.open_layer(id));
        Ok(layers.iter().map(open).collect::<Result<Vec<_>, StoreError>>()?)
    }

    /// Device state fits only the machine that it was saved on.
    pub(crate) fn require_compatible(&self, row: &SnapshotRow) -> Result<(), EngineError> {
        if row.manifest.machine == self.machine {
            return Ok(());
        }
        Err(EngineError::Incompatible {
            tag: row.tag.clone(),
            made_with: row.manifest.machine.to_string(),
            running: self.machine.to_string(),
        })
    }
}
