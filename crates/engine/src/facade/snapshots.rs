//! Templates and snapshots.

use std::sync::Arc;

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::{ByteCount, Owner, SandboxId, SnapshotTag};

use crate::sandboxes::SandboxHandle;
use crate::{
    DeletePolicy, Engine, EngineError, ImageInfo, ProgressSink, Snapshot, TemplateRequest,
};

impl Engine {
    /// The images that templates can be built from.
    #[must_use]
    pub fn images(&self) -> Vec<ImageInfo> {
        self.lifecycle.host.images.list()
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
        let mut all = self.snapshots.catalog.view_all();
        all.retain(|snapshot| self.caller.sees_snapshot(snapshot));
        all
    }

    /// One snapshot.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`].
    pub fn snapshot(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        self.visible_snapshot(tag)
    }

    /// How large the disk of a snapshot's sandboxes is; none where they have none. Reads a file.
    ///
    /// # Errors
    /// [`EngineError::UnknownSnapshot`], or when its image is not there.
    pub fn disk_size(&self, tag: &SnapshotTag) -> Result<Option<ByteCount>, EngineError> {
        self.visible_snapshot(tag)?;
        let row = self.snapshots.catalog.get(tag)?;
        self.snapshots.disk_size(&row)
    }

    /// Waits until a snapshot is usable.
    ///
    /// # Errors
    /// [`EngineError::SnapshotNotReady`] when it fails instead.
    pub async fn wait_ready(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        self.visible_snapshot(tag)?;
        self.snapshots.catalog.written(tag).await?;
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
    /// depends on it keeps working: layers and overlays stay for as long as anything lists them. So
    /// does in any case what depends on it and does not exist for the caller.
    ///
    /// # Errors
    /// [`EngineError::SnapshotInUse`] names sandboxes and snapshots that build on it.
    pub async fn delete_snapshot(
        &self,
        tag: &SnapshotTag,
        policy: DeletePolicy,
    ) -> Result<(), EngineError> {
        self.check_own(tag)?;
        loop {
            let dependents = self.dependents(tag);
            let names = dependents.names(self.caller.owner());
            if policy == DeletePolicy::Refuse && !names.is_empty() {
                let dependents = names.join(", ");
                return Err(EngineError::SnapshotInUse { tag: tag.clone(), dependents });
            }
            if policy == DeletePolicy::Cascade {
                self.remove_dependents(dependents).await?;
            }
            let may_go = |row: &SnapshotRow, over| {
                policy == DeletePolicy::Force || self.dependents_of(row, over).is_empty()
            };
            // Unless something has come to build on it meanwhile.
            if self.snapshots.remove_if(tag, may_go)? {
                return Ok(());
            }
        }
    }

    async fn remove_dependents(&self, dependents: Dependents) -> Result<(), EngineError> {
        for id in dependents.sandboxes {
            match self.remove_sandbox(&id).await {
                Ok(()) | Err(EngineError::UnknownSandbox { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for tag in dependents.snapshots {
            match Box::pin(self.delete_snapshot(&tag, DeletePolicy::Cascade)).await {
                Ok(()) | Err(EngineError::UnknownSnapshot { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The snapshots and sandboxes that build on `tag`, of those that exist for the caller.
    #[must_use]
    pub fn dependents(&self, tag: &SnapshotTag) -> Dependents {
        let Ok(row) = self.snapshots.catalog.get(tag) else { return Dependents::default() };
        self.dependents_of(&row, self.snapshots.catalog.over(tag))
    }

    /// The same of a row, over which the snapshots `over` were made. The catalog is not asked.
    fn dependents_of(&self, row: &SnapshotRow, over: Vec<SnapshotTag>) -> Dependents {
        let mut sandboxes = self.all_visible();
        sandboxes.retain(|handle| is_of(handle, row));
        let sandboxes = sandboxes.iter().map(|handle| handle.id().clone()).collect();
        let mut snapshots = over;
        snapshots.retain(|tag| self.caller.controls(tag.owner()));
        Dependents { snapshots, sandboxes }
    }

    /// The snapshot that a sandbox was started from, unless it has been removed. One that was made
    /// later is another of the same name.
    pub(super) fn origin_of(&self, id: &SandboxId) -> Option<SnapshotTag> {
        let handle = self.visible(id).ok()?;
        let row = self.snapshots.catalog.get(&handle.sandbox().snapshot_tag).ok()?;
        is_of(&handle, &row).then_some(row.tag)
    }

    /// The files that sandboxes run over or build their next branch on. Some are in no snapshot:
    /// layers and overlays that were merged for the next branch.
    #[must_use]
    pub fn claimed_by_sandboxes(&self) -> FileSet {
        self.snapshots.files.claimed()
    }
}

/// Whether a sandbox was started from this very snapshot.
fn is_of(handle: &SandboxHandle, row: &SnapshotRow) -> bool {
    let is_same = match handle.origin() {
        Some(origin) => origin.layers == row.manifest.layers,
        // A sandbox that starts has not got it yet.
        None => true,
    };
    is_same && handle.sandbox().snapshot_tag == row.tag
}

/// What builds on a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dependents {
    /// Snapshots that were made over it.
    pub snapshots: Vec<SnapshotTag>,
    /// Sandboxes that were started from it.
    pub sandboxes: Vec<SandboxId>,
}

impl Dependents {
    fn is_empty(&self) -> bool {
        self.snapshots.is_empty() && self.sandboxes.is_empty()
    }

    /// All of them, by the names that they have for `reader`.
    #[must_use]
    pub fn names(&self, reader: &Owner) -> Vec<String> {
        let snapshots = self.snapshots.iter().map(|tag| tag.shown_to(reader));
        snapshots.chain(self.sandboxes.iter().map(ToString::to_string)).collect()
    }
}
