//! What the work on snapshots shares.

use std::sync::{Arc, Mutex, PoisonError};

use forkd_store::{Layer, SnapshotManifest, SnapshotRow, StoreError};
use forkd_types::{ByteCount, LayerId, OperationId, SnapshotStatus, SnapshotTag, limit};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::catalog::Inherited;
use super::{Catalog, Files, Keys};
use crate::background::Background;
use crate::host::{DiskTool, Images};
use crate::operation::Operations;
use crate::{BranchProbe, EngineError};

/// All snapshots, with their files and the work on them.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) files: Arc<Files>,
    pub(super) images: Images,
    pub(super) disk_tool: Arc<DiskTool>,
    pub(super) operations: Arc<Operations>,
    pub(super) background: Background,
    pub(super) probe: Option<Arc<dyn BranchProbe>>,
    /// What the snapshots of one owner may occupy.
    pub(super) disk_of_owner: Option<ByteCount>,
    /// One tag is taken at a time: none is, before it is known whether there is room for it.
    reserving: Mutex<()>,
    /// One snapshot is published at a time: more would only compete for the disk.
    pub(super) publishing: Semaphore,
    /// One snapshot is compacted at a time: each may need as much room as all layers below it.
    pub(super) compacting: Semaphore,
    /// Few snapshots are exported, or imported, at a time: each holds a thread for as long as its
    /// client takes.
    pub(crate) exporting: Arc<Semaphore>,
    pub(super) importing: Semaphore,
    /// Who signs what is exported, and whose exports are imported.
    pub(crate) keys: Keys,
    /// One mapping view is made at a time in the background.
    pub(super) viewing: Semaphore,
    /// Cancelled when the snapshots that were there at the start have been checked.
    pub(super) checked: CancellationToken,
}

/// What [`Snapshots`] is made of.
pub(crate) struct SnapshotsConfig {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) files: Arc<Files>,
    pub(crate) images: Images,
    pub(crate) disk_tool: Arc<DiskTool>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) background: Background,
    pub(crate) probe: Option<Arc<dyn BranchProbe>>,
    /// What the snapshots of one owner may occupy.
    pub(crate) disk_of_owner: Option<ByteCount>,
    pub(crate) keys: Keys,
}

impl Snapshots {
    pub(crate) fn new(config: SnapshotsConfig) -> Arc<Self> {
        let SnapshotsConfig {
            catalog,
            files,
            images,
            disk_tool,
            operations,
            background,
            probe,
            disk_of_owner,
            keys,
        } = config;
        Arc::new(Self {
            catalog,
            files,
            images,
            disk_tool,
            operations,
            background,
            probe,
            disk_of_owner,
            reserving: Mutex::default(),
            publishing: Semaphore::new(1),
            compacting: Semaphore::new(1),
            exporting: Arc::new(Semaphore::new(limit::ARTIFACTS_AT_ONCE)),
            importing: Semaphore::new(limit::ARTIFACTS_AT_ONCE),
            keys,
            viewing: Semaphore::new(1),
            checked: CancellationToken::new(),
        })
    }

    /// Where work on snapshots is told.
    pub(crate) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Waits until the snapshots that were there at the start have been checked.
    pub(crate) async fn wait_checked(&self) {
        self.checked.cancelled().await;
    }

    /// Takes a tag for a snapshot that is going to be written. The tag of a failed one is free.
    pub(crate) fn reserve(
        &self,
        tag: &SnapshotTag,
        manifest: SnapshotManifest,
        inherited: Inherited,
        maker: &OperationId,
    ) -> Result<(), EngineError> {
        let failed = self.catalog.get(tag).ok().filter(|row| row.status == SnapshotStatus::Failed);
        // One that was damaged lists files, and others may be over it: it is removed in order.
        if failed.is_some_and(|row| !row.manifest.layers.is_empty()) {
            self.remove(tag)?;
        }
        let _one_at_a_time = self.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_disk_of(tag.owner(), manifest.memory)?;
        self.catalog.reserve(tag, manifest, inherited, maker)
    }

    /// Removes a snapshot, and the files that nobody else needs.
    pub(crate) fn remove(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        self.remove_if(tag, |_, _| true).map(drop)
    }

    /// The same if `may_go` says so: see [`Catalog::remove_if`]. Tells whether it is gone.
    pub(crate) fn remove_if(
        &self,
        tag: &SnapshotTag,
        may_go: impl FnOnce(&SnapshotRow, Vec<SnapshotTag>) -> bool,
    ) -> Result<bool, EngineError> {
        let row = self.catalog.get(tag)?;
        let is_gone = self.catalog.remove_if(tag, may_go)?;
        if is_gone {
            self.files.collect(&(&row.manifest).into());
        }
        Ok(is_gone)
    }

    /// Opens layers in the given order. A hot copy that is gone is made anew from the durable one.
    pub(crate) fn open_chain(&self, layers: &[LayerId]) -> Result<Vec<Layer>, EngineError> {
        let open = |id| self.files.with_room(|| self.files.open_layer(id));
        Ok(layers.iter().map(open).collect::<Result<Vec<_>, StoreError>>()?)
    }

    /// Keeps the budget of hot copies, in the background.
    pub(crate) fn keep_budget_in_background(&self) {
        if self.files.has_budget() {
            let files = Arc::clone(&self.files);
            let what = "keeping the budget of the hot directory";
            self.background.spawn_blocking(what, move || files.keep_budget());
        }
    }
}
