//! What the engine knows of a sandbox without asking its task.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forkd_store::SnapshotManifest;
use forkd_types::network::{Alias, NetworkName};
use forkd_types::{AtEnd, LifeCycle as _, Owner, SandboxId, SandboxState};
use forkd_vmm::VmmError;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::lease::{Lease, SharedLease};
use super::queue::{Refusal, RequestQueue, Ticket};
use super::{Place, PortStream, Request, RequestKind, UseGuard};
use crate::events::{Change, EventLog, SandboxChange};
use crate::guest::{GuestAgent, GuestError, ProcessTable};
use crate::network::VmLink;
use crate::{EngineError, Sandbox};

/// From the end of a VMM, which breaks off requests to its guest, until the sandbox's task knows.
const END_KNOWN_DEADLINE: Duration = Duration::from_millis(500);
const END_KNOWN_POLL: Duration = Duration::from_millis(5);

/// One sandbox, from its request to its removal.
pub(crate) struct SandboxHandle {
    id: SandboxId,
    view: Mutex<View>,
    queue: Mutex<RequestQueue<Request>>,
    queued: Notify,
    lease: SharedLease,
    /// The lease has another end.
    lease_changed: Notify,
    processes: ProcessTable,
    events: Arc<EventLog>,
}

struct View {
    sandbox: Sandbox,
    agent: Option<GuestAgent>,
    /// The link of its network device, for another gateway.
    link: Option<Arc<VmLink>>,
    /// Its place among those that there may be.
    place: Option<Place>,
    /// What it was started from, which may have been removed since.
    origin: Option<SnapshotManifest>,
}

impl fmt::Debug for SandboxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxHandle").field(&self.id).finish()
    }
}

impl SandboxHandle {
    pub(crate) fn new(sandbox: Sandbox, place: Place, events: Arc<EventLog>) -> Self {
        let options = &sandbox.options;
        let lease = Lease::new(sandbox.created_at, options.ttl, options.idle_timeout);
        Self {
            id: sandbox.id.clone(),
            view: Mutex::new(View {
                agent: None,
                link: None,
                origin: None,
                sandbox,
                place: Some(place),
            }),
            queue: Mutex::default(),
            queued: Notify::new(),
            lease: SharedLease::new(lease),
            lease_changed: Notify::new(),
            processes: ProcessTable::default(),
            events,
        }
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// To whom it belongs.
    pub(crate) fn owner(&self) -> Owner {
        self.lock().sandbox.options.owner.clone()
    }

    /// Its alias in each private network of this owner: none of somebody else's, or without a VM.
    pub(crate) fn memberships(&self, owner: &Owner) -> BTreeMap<NetworkName, Alias> {
        if !self.is_there() {
            return BTreeMap::new();
        }
        let view = self.lock();
        let options = &view.sandbox.options;
        if options.owner == *owner { options.memberships.clone() } else { BTreeMap::new() }
    }

    /// A copy of what is known.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.shown(&self.lock())
    }

    /// What others get to see.
    fn shown(&self, view: &View) -> Sandbox {
        let left = self
            .lease
            .with(|lease, now| lease.end(now).map(|end| end.saturating_duration_since(now)));
        Sandbox { expires_at: left.map(|left| SystemTime::now() + left), ..view.sandbox.clone() }
    }

    /// It is in use until what this gives is dropped.
    pub(crate) fn use_guard(&self) -> UseGuard {
        self.lease.enter()
    }

    /// Somebody asks something of it.
    pub(crate) fn touch(&self) {
        self.lease.touch();
    }

    /// When to look whether its time is over.
    pub(crate) fn lease_end(&self) -> Option<Instant> {
        self.touch_if_busy();
        self.lease.with(|lease, now| lease.end(now))
    }

    /// It may live for `left` from now on, however long it has lived.
    pub(crate) fn live_for(&self, left: Option<Duration>) {
        let ttl = self.lease.with(|lease, now| lease.live_for(left, now));
        self.update(|sandbox| sandbox.options.ttl = ttl);
        self.lease_changed.notify_one();
    }

    /// Waits until the lease has another end. Safe to cancel.
    pub(crate) async fn lease_changed(&self) {
        self.lease_changed.notified().await;
    }

    /// A background process uses it.
    fn touch_if_busy(&self) {
        if self.processes.has_running() {
            self.touch();
        }
    }

    /// Whether its time is over.
    pub(crate) fn has_expired(&self) -> bool {
        self.touch_if_busy();
        self.lease.with(|lease, now| lease.has_ended(now))
    }

    /// Whether its time to live is over, and it is to be paused then.
    pub(crate) fn pauses_now(&self) -> bool {
        self.lock().sandbox.options.at_end == AtEnd::Pause
            && self.lease.with(|lease, now| lease.is_too_old(now))
    }

    /// It is removed: another may take its place.
    pub(crate) fn leave(&self) {
        self.lock().place = None;
    }

    /// Changes what is known. Its state stays.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Sandbox)) {
        self.write(None, change);
    }

    /// Brings it to another state, with what else changes then. The only way to write a state. A
    /// hop that the table does not have is a defect: it is logged, and nothing is changed.
    pub(crate) fn enter(&self, state: SandboxState, change: impl FnOnce(&mut Sandbox)) {
        self.write(Some(state), change);
    }

    fn write(&self, state: Option<SandboxState>, change: impl FnOnce(&mut Sandbox)) {
        let mut view = self.lock();
        let (before, reason) = (view.sandbox.state, view.sandbox.error.clone());
        let after = state.unwrap_or(before);
        if before != after && !before.can_become(after) {
            tracing::error!(sandbox = %self.id, %before, %after, "a state that cannot follow");
            return;
        }
        change(&mut view.sandbox);
        view.sandbox.state = after;
        if after == SandboxState::Dead
            && let Some(place) = &mut view.place
        {
            place.give_back_memory();
        }
        if let Some(change) = change_between(before, after, reason != view.sandbox.error) {
            // While it is locked, so that events have the order of the changes.
            let sandbox = Box::new(self.shown(&view));
            self.events.push(Change::Sandbox(change, sandbox));
        }
    }

    /// The gateway has refused what it wanted to reach, so many times.
    pub(crate) fn refused(&self, times: u64) {
        let mut view = self.lock();
        view.sandbox.network_refusals += times;
        let sandbox = Box::new(self.shown(&view));
        self.events.push(Change::Sandbox(SandboxChange::Refused, sandbox));
    }

    pub(crate) fn set_agent(&self, agent: GuestAgent) {
        self.lock().agent = Some(agent);
    }

    /// Goes on with the programs that its guest has from before: from the source that it is a
    /// branch of, or from the time of another daemon. Until they are known,
    /// [`ProcessTable::settled`] waits. The agent has been greeted.
    pub(crate) fn follow_programs(self: &Arc<Self>, agent: &GuestAgent) {
        if !agent.keeps_programs() {
            return;
        }
        let (asking, agent, handle) = (self.processes.asking(), agent.clone(), Arc::clone(self));
        tokio::spawn(async move {
            if let Err(error) = handle.processes.follow_kept(&agent).await {
                tracing::warn!(sandbox = %handle.id, %error, "its programs are not followed");
            }
            drop(asking);
        });
    }

    /// The VM is gone, or another daemon's: nobody can be talked to.
    pub(crate) fn disconnect(&self) {
        let mut view = self.lock();
        let agent = view.agent.take();
        view.link = None;
        drop(view);
        if let Some(agent) = agent {
            agent.leave();
        }
        self.processes.end_all("the sandbox ended");
    }

    /// Its network device is joined to the gateway by this link.
    pub(crate) fn set_link(&self, link: Arc<VmLink>) {
        self.lock().link = Some(link);
    }

    /// The link of its network device, if it has one and a VM.
    pub(crate) fn link(&self) -> Option<Arc<VmLink>> {
        self.lock().link.clone()
    }

    /// A stream to one of its ports, whose traffic is use of it.
    pub(crate) fn port_stream(&self, stream: UnixStream) -> PortStream {
        PortStream::new(stream, self.lease.clone())
    }

    /// The background processes, those that were there before the sandbox was ours included.
    pub(crate) async fn settled_processes(&self) -> &ProcessTable {
        self.processes.settled().await;
        &self.processes
    }

    /// This is what it is started from.
    pub(crate) fn set_origin(&self, manifest: SnapshotManifest) {
        self.lock().origin = Some(manifest);
    }

    /// What it was started from.
    pub(crate) fn origin(&self) -> Option<SnapshotManifest> {
        self.lock().origin.clone()
    }

    /// The guest agent, if the sandbox runs.
    pub(crate) fn agent(&self) -> Result<GuestAgent, EngineError> {
        let view = self.lock();
        let runs = matches!(view.sandbox.state, SandboxState::Running | SandboxState::Branching);
        match &view.agent {
            Some(agent) if runs => Ok(agent.clone()),
            _ => Err(not_running(&view.sandbox)),
        }
    }

    fn queue(&self) -> MutexGuard<'_, RequestQueue<Request>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the queue for a request that is still to be completed.
    pub(crate) fn place_for(&self, kind: RequestKind) -> Result<QueuePlace<'_>, EngineError> {
        let state = self.lock().sandbox.state;
        let taken = self.queue().take_place(state, kind);
        let ticket = taken.map_err(|refusal| match refusal {
            Refusal::Busy => EngineError::SandboxBusy { id: self.id.clone() },
            Refusal::NotRunning => self.not_running(),
        })?;
        Ok(QueuePlace { handle: self, ticket })
    }

    /// Queues a request.
    pub(crate) fn request(&self, request: Request) -> Result<(), EngineError> {
        self.place_for(request.kind())?.complete(request);
        Ok(())
    }

    /// Nobody takes requests from now on. Gives those that waited, to be refused. For the sandbox's
    /// task alone.
    pub(crate) fn end_requests(&self) -> Vec<Request> {
        self.queue().end()
    }

    /// Waits for the next request. For the sandbox's task alone; may be dropped at any time without
    /// losing one.
    pub(crate) async fn next_request(&self) -> Request {
        loop {
            let queued = self.queued.notified();
            if let Some(request) = self.queue().next() {
                return request;
            }
            queued.await;
        }
    }

    /// Whether it has a VM, running or not.
    pub(crate) fn is_there(&self) -> bool {
        use SandboxState::{Dead, Gone, Stopping};
        !matches!(self.lock().sandbox.state, Dead | Gone | Stopping)
    }

    /// The result of a request to its guest agent. Where that broke off, the sandbox did not run:
    /// it was removed or paused meanwhile, or its VMM ended, which may be known a moment later.
    pub(crate) async fn explain<T>(&self, done: Result<T, GuestError>) -> Result<T, EngineError> {
        let error = match done {
            Ok(value) => return Ok(value),
            Err(error @ GuestError::Closed { .. }) => error,
            Err(other) => return Err(other.into()),
        };
        let stopped = tokio::time::timeout(END_KNOWN_DEADLINE, async {
            while self.agent().is_ok() {
                tokio::time::sleep(END_KNOWN_POLL).await;
            }
        });
        if stopped.await.is_err() {
            return Err(error.into());
        }
        let sandbox = self.sandbox();
        let limit = sandbox.limits.memory.filter(|_| sandbox.memory_limit_reached);
        Err(match limit {
            Some(limit) => VmmError::MemoryLimitReached { limit }.into(),
            None => self.not_running(),
        })
    }

    /// The error for a request that needs a running sandbox.
    pub(crate) fn not_running(&self) -> EngineError {
        not_running(&self.lock().sandbox)
    }
}

/// What is told of a change of state, or of another reason for it.
fn change_between(
    before: SandboxState,
    after: SandboxState,
    other_reason: bool,
) -> Option<SandboxChange> {
    use SandboxState::{Branching, Dead, Gone, Paused, RollingBack, Running, Starting, Stopping};
    match (before, after) {
        (Starting, Running) => Some(SandboxChange::Started),
        // Nobody has heard of it.
        (Starting, _) => None,
        (_, after) if after == before && !other_reason => None,
        (_, Dead) => Some(SandboxChange::Dead),
        (_, Gone) => Some(SandboxChange::Removed),
        (_, Starting | Running | Branching | Paused | RollingBack | Stopping) => {
            Some(SandboxChange::State)
        }
    }
}

/// A place in a sandbox's queue. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct QueuePlace<'a> {
    handle: &'a SandboxHandle,
    ticket: Ticket,
}

impl QueuePlace<'_> {
    /// This is the request that the place was taken for.
    pub(crate) fn complete(self, request: Request) {
        self.handle.queue().complete(self.ticket, request);
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.handle.queue().give_up(self.ticket);
        // What waits behind it, or itself, may be next.
        self.handle.queued.notify_one();
    }
}

/// A sandbox that is used until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    handle: Arc<SandboxHandle>,
    _guard: UseGuard,
}

impl InUse {
    pub(crate) fn of(handle: Arc<SandboxHandle>) -> Self {
        let guard = handle.use_guard();
        Self { handle, _guard: guard }
    }
}

impl Deref for InUse {
    type Target = SandboxHandle;

    fn deref(&self) -> &SandboxHandle {
        &self.handle
    }
}

fn not_running(sandbox: &Sandbox) -> EngineError {
    EngineError::SandboxNotRunning {
        id: sandbox.id.clone(),
        state: sandbox.state,
        reason: sandbox.error.clone(),
    }
}
