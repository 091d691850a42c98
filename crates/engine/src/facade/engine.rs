//! Opening an engine, and shutting it down.

use std::sync::Arc;

use forkd_store::{Registry, StoreFiles, private_directory, recover};
use forkd_types::{Accelerator, Isolation};
use tokio::sync::oneshot;

use crate::background::Background;
use crate::branch::Branches;
use crate::events::EventLog;
use crate::host::{Host, VmmMemories};
use crate::lifecycle::{Inherited, Lifecycle};
use crate::network::{Gateway, GatewayProcess, Networks};
use crate::operation::Operations;
use crate::sandboxes::{PortTokens, Request, Sandboxes, Standby};
use crate::snapshots::{Catalog, Files, Keys, Snapshots, SnapshotsConfig};
use crate::tally::Tally;
use crate::{AtShutDown, Caller, EngineConfig, EngineError};

/// Everything that one daemon owns, as one caller sees it: the daemon's own user unless
/// [`Self::seen_by`] says otherwise. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(crate) snapshots: Arc<Snapshots>,
    /// Of all owners: see `visible`.
    pub(super) all_sandboxes: Arc<Sandboxes>,
    pub(super) operations: Arc<Operations>,
    pub(super) events: Arc<EventLog>,
    pub(super) background: Background,
    pub(super) tally: Arc<Tally>,
    pub(super) port_tokens: Arc<PortTokens>,
    pub(super) vmm_memories: Arc<VmmMemories>,
    /// Who asks.
    pub(super) caller: Caller,
}

impl Engine {
    /// Opens the store, deals with what an earlier daemon left, and chooses the accelerator.
    ///
    /// # Errors
    /// When a directory or the registry cannot be used, or QEMU is missing.
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let files = open_directories(&config)?;
        let host = Host::open(&config).await?;
        let gateway = Arc::new(GatewayProcess::new(&config, host.isolation, host.users));
        let engine = Self::open_on(config, files, host, Arc::clone(&gateway) as _).await?;
        let background = engine.background.clone();
        engine.background.spawn(async move {
            tokio::select! {
                biased;
                () = background.ending() => {}
                () = gateway.keep() => {}
            }
        });
        Ok(engine)
    }

    /// Opens the store for VMs on `host`.
    pub(crate) async fn open_on(
        config: EngineConfig,
        files: StoreFiles,
        host: Host,
        gateway: Arc<dyn Gateway>,
    ) -> Result<Self, EngineError> {
        let registry = Arc::new(Registry::open(&files.registry())?);
        let driver = host.driver.as_ref();
        let inherited = Inherited::find(&registry, &files, &config.run_dir, driver)?;
        let rows = recover(&registry, &files)?;
        let background = Background::new();
        let events = EventLog::new();
        let operations = Operations::new(Arc::clone(&events));
        let tally = Arc::new(Tally::default());
        let directory = files.state().to_owned();
        let catalog =
            Arc::new(Catalog::new(Arc::clone(&registry), rows, directory, Arc::clone(&events)));
        let files = Arc::new(Files::new(files, Arc::clone(&catalog), config.hot_budget));
        let snapshots = Snapshots::new(SnapshotsConfig {
            catalog,
            files: Arc::clone(&files),
            images: host.images.clone(),
            disk_tool: Arc::clone(&host.disk_tool),
            operations: Arc::clone(&operations),
            background: background.clone(),
            probe: config.probe.clone(),
            disk_of_owner: config.limits.each_owner.disk,
            keys: Keys::open(&config.state_dir)?,
        });
        let networks = Arc::new(Networks::open(gateway, &config)?);
        let (limits, run_dir) = (config.limits, config.run_dir.clone());
        let sandboxes =
            Sandboxes::new(limits, Arc::clone(&events), registry, files, run_dir, host.users);
        let branches = Branches::new(
            &config,
            Arc::clone(&snapshots),
            Arc::clone(&sandboxes),
            Arc::clone(&operations),
            Arc::clone(&tally),
            Arc::clone(&networks),
            background.runtime().clone(),
        );
        let standby = Standby::new(limits.standby);
        let lifecycle = Arc::new(Lifecycle {
            host,
            networks,
            snapshots: Arc::clone(&snapshots),
            sandboxes: Arc::clone(&sandboxes),
            branches,
            standby,
            background: background.clone(),
        });
        lifecycle.spare_fitted();
        lifecycle.take_over_all(inherited).await;
        lifecycle.sweep_files();
        snapshots.recheck_in_background();
        background.spawn(Arc::clone(&lifecycle).keep_standby());
        background.spawn(Arc::clone(&lifecycle).keep_networks());
        let vmm_memories = Arc::default();
        Ok(Self {
            lifecycle,
            snapshots,
            all_sandboxes: sandboxes,
            operations,
            events,
            background,
            tally,
            port_tokens: Arc::default(),
            vmm_memories,
            caller: Caller::default(),
        })
    }

    /// Cancels what makes snapshots, removes all sandboxes or leaves them to the next engine on the
    /// same directories, and waits for work in the background.
    pub async fn shut_down(&self, sandboxes: AtShutDown) {
        self.operations.cancel_makers();
        self.background.end();
        for handle in self.all_sandboxes.all() {
            let (done, finished) = oneshot::channel();
            let request = match sandboxes {
                AtShutDown::Remove => Request::Remove(done),
                AtShutDown::Leave => Request::Release(done),
            };
            if handle.request(request).is_ok() {
                // Its task may have ended without an answer: then nothing is left to be done.
                finished.await.ok();
            }
        }
        self.lifecycle.host.starting.close();
        self.background.drained().await;
        if sandboxes == AtShutDown::Remove {
            self.lifecycle.networks.gateway_gone().await;
        }
        self.events.close();
    }

    /// Waits until the snapshots that were there at the start have been checked, which goes on in
    /// the background.
    pub async fn wait_checked(&self) {
        self.snapshots.wait_checked().await;
    }

    /// What executes guests here.
    #[must_use]
    pub fn accelerator(&self) -> Accelerator {
        self.lifecycle.host.accelerator
    }

    /// How far new VMMs are kept from this host.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        self.lifecycle.host.isolation
    }
}

/// Opens the directories of `config`, made if they are not there.
pub(crate) fn open_directories(config: &EngineConfig) -> Result<StoreFiles, EngineError> {
    let files = StoreFiles::open(&config.state_dir, &config.hot_dir)?;
    private_directory(&config.run_dir)?;
    Ok(files)
}
