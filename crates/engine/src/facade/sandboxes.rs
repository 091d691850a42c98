//! Forks, branches, and the removal of sandboxes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forkd_netd_protocol::{FlowRecord, read_log};
use forkd_store::{InheritedLimits, SnapshotManifest, SnapshotRow};
use forkd_types::network::{NetworkName, NetworkPolicy};
use forkd_types::{ByteCount, OperationId, SandboxId, SandboxState, SnapshotTag, TagName, limit};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::background::blocking;
use crate::network::InheritedNetwork;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandboxes::{BranchOrder, Place, Request, RequestKind, SandboxHandle, Sibling};
use crate::snapshots::Inherited;
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
        let row = self.ready_row(tag)?;
        let options = self.lifecycle.host.confiner.permit(options, &row.limits)?;
        self.lifecycle.networks.private.check(&options.owner, &options.join)?;
        let options = self.with_network(options, &row)?;
        let mut started = Vec::new();
        let mut failed = None;
        let places = self.places(count, row.manifest.memory)?;
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

    /// What a sandbox may reach is settled before it starts.
    fn with_network(
        &self,
        options: SandboxOptions,
        row: &SnapshotRow,
    ) -> Result<SandboxOptions, EngineError> {
        let inherited = InheritedNetwork::read(row)?;
        let policy = options.network.or(inherited.policy).unwrap_or_default();
        let policy = self.lifecycle.networks.permit(policy, &row.manifest)?;
        Ok(SandboxOptions { network: Some(policy), ..options })
    }

    /// Replaces what a sandbox may reach, and which private networks it is a member of, if that is
    /// said.
    ///
    /// # Errors
    /// [`EngineError::NetworkNotPermitted`], [`EngineError::NoNetworkDevice`],
    /// [`EngineError::UnknownNetwork`], [`EngineError::LimitReached`], and when the gateway does
    /// not answer: the next one that does has the policy.
    pub async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
        join: Option<BTreeSet<NetworkName>>,
    ) -> Result<Sandbox, EngineError> {
        let handle = self.with_link(id)?;
        let networks = &self.lifecycle.networks;
        let machine = handle.origin().ok_or_else(|| handle.not_running())?;
        let policy = networks.permit(policy, &machine)?;
        // One change after the other: the last one told is the one in force.
        let _turn = networks.changing.lock().await;
        if let Some(join) = &join {
            self.lifecycle.settle_networks(&handle, join)?;
        }
        handle.update(|sandbox| sandbox.options.network = Some(policy.clone()));
        self.all_sandboxes.record_options(&handle)?;
        networks.set_policy(id, &policy).await?;
        if join.is_some() {
            networks.set_networks(id, handle.memberships(&handle.owner())).await?;
        }
        Ok(handle.sandbox())
    }

    /// A sandbox that has a network.
    pub(super) fn with_link(&self, id: &SandboxId) -> Result<Arc<SandboxHandle>, EngineError> {
        let handle = self.visible(id)?;
        if !handle.is_there() {
            return Err(handle.not_running());
        }
        match handle.link() {
            Some(_) => Ok(handle),
            None => Err(EngineError::NoNetworkDevice { id: id.clone() }),
        }
    }

    /// What the network gateway has logged of a sandbox, oldest first: the last 1 to 2 MiB.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`]; [`EngineError::Internal`] when the log cannot be read.
    pub async fn network_log(&self, id: &SandboxId) -> Result<Vec<FlowRecord>, EngineError> {
        let folder = self.all_sandboxes.network_log_folder(self.visible(id)?.id());
        let read = blocking(move || read_log(&folder)).await?;
        read.map_err(|error| {
            EngineError::Internal(format!("read the network log of {id}: {error}"))
        })
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
        let start = |(number, place)| {
            let sibling = if number == 0 { Sibling::First } else { Sibling::Later };
            let lifecycle = Arc::clone(&self.lifecycle);
            let (tag, options) = (tag.clone(), options.clone());
            let start = async move { lifecycle.start_child(&tag, place, options, sibling).await };
            // A task of its own: a client that goes away must not leave half a child.
            self.background.spawn(start.in_current_span())
        };
        let tasks: Vec<_> = places.into_iter().enumerate().map(start).collect();
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
        let origin = handle.origin().ok_or_else(|| handle.not_running())?;
        let permit = |policy| self.lifecycle.networks.permit(policy, &origin);
        let network = request.network.map(permit).transpose()?;
        if let Some(join) = &request.join {
            self.lifecycle.networks.private.check(self.caller.owner(), join)?;
        }
        let memory = origin.memory;
        let places = self.places(request.children, memory)?;
        let queued = handle.place_for(RequestKind::Branch)?;
        let operation = self.reserve_branch(&handle, &tag, request.private)?;
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
        let children = self.start_branched(&handle, &tag, places, network, request.join).await;
        Ok(Branch { snapshot: self.snapshot(&tag)?, children })
    }

    /// The children that a branch was asked for, with the limits of their source.
    async fn start_branched(
        &self,
        source: &SandboxHandle,
        tag: &SnapshotTag,
        places: Vec<Place>,
        network: Option<NetworkPolicy>,
        join: Option<BTreeSet<NetworkName>>,
    ) -> Vec<Result<Sandbox, EngineError>> {
        let limits = inherited(source);
        let options = source.sandbox().options;
        let options = SandboxOptions {
            owner: self.caller.owner().clone(),
            memory_limit: limits.memory,
            own_network: limits.own_network,
            network: network.or(options.network),
            join: join.unwrap_or_else(|| options.memberships.into_keys().collect()),
            ..SandboxOptions::default()
        };
        // Whoever branches starts children next, if not here then in another request.
        if places.is_empty()
            && let Ok(row) = self.snapshots.catalog.ready(tag)
            && let Ok(shape) = self.lifecycle.shape_of(&row, &options).await
        {
            self.lifecycle.standby.expect(&shape);
        }
        self.start_children(tag, places, &options).await
    }

    fn reserve_branch(
        &self,
        handle: &SandboxHandle,
        tag: &SnapshotTag,
        private: bool,
    ) -> Result<Running, EngineError> {
        let origin = handle.origin().ok_or_else(|| handle.not_running())?;
        let manifest = SnapshotManifest {
            layers: Vec::new(),
            overlays: Vec::new(),
            device_state: None,
            contents: forkd_store::KnownContents::default(),
            parent_tag: self.origin_of(handle.id()),
            branched_from: Some(handle.id().clone()),
            private: private || origin.private,
            ..origin
        };
        let id = OperationId::random();
        let inherited = Inherited { limits: inherited(handle), network: None };
        self.snapshots.reserve(tag, manifest, inherited, &id)?;
        let subject = Subject::of_branch(tag, handle.id());
        Ok(self.operations.start(id, OperationKind::Branch, subject))
    }
}

/// What is started from a sandbox's snapshots cannot shed.
fn inherited(source: &SandboxHandle) -> InheritedLimits {
    let options = source.sandbox().options;
    InheritedLimits { memory: options.memory_limit, own_network: options.own_network }
}
