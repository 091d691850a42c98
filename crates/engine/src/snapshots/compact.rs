//! A snapshot that depends on no other, made of one that does: its memory as one base layer, its
//! disk as one overlay over the base image, a copy of its device state.
//!
//! Nothing of it needs a VM, and the original stays as it is. While the new snapshot is `writing`
//! its parent is the original, which therefore cannot be removed except by cascade, or by force,
//! when its files stay until they have been read; once it is ready, or failed, it has no parent.
//!
//! Who cancels it waits for the merge under way, of the disk or of the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use forkd_store::{FileSet, SnapshotManifest, SnapshotRow, StoreError, flatten};
use forkd_types::{OperationId, SnapshotStatus, SnapshotTag};
use tracing::Instrument as _;

use super::Snapshots;
use super::catalog::Inherited;
use super::parts::damaged;
use crate::background::{blocking, turn};
use crate::operation::{OperationKind, Running, Subject};
use crate::{EngineError, describe};

impl Snapshots {
    /// Takes the tag `to` and gives the work of making it of the ready snapshot `tag`.
    pub(crate) fn begin_compact(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        to: &SnapshotTag,
    ) -> Result<impl Future<Output = Result<(), EngineError>> + Send + use<>, EngineError> {
        let source = self.catalog.ready(tag)?;
        let manifest = SnapshotManifest {
            layers: Vec::new(),
            overlays: Vec::new(),
            overlay_checksums: BTreeMap::new(),
            device_state: None,
            contents: forkd_store::KnownContents::default(),
            parent_tag: Some(tag.clone()),
            ..source.manifest
        };
        let id = OperationId::random();
        let inherited = Inherited { limits: source.limits, network: source.network };
        self.reserve(to, manifest, inherited, &id)?;
        let subject = Subject::of_snapshot(to);
        let operation = self.operations.start(id, OperationKind::Compact, subject);
        let span = tracing::info_span!("compact", snapshot = %to, operation = %operation.id());
        let (snapshots, tag, to) = (Arc::clone(self), tag.clone(), to.clone());
        let work = async move {
            let operation = Arc::new(operation);
            let result = snapshots.compact(&tag, &to, &operation).await;
            match &result {
                Ok(()) => {
                    tracing::info!("compacted");
                    snapshots.publish_in_background(&to);
                }
                Err(error) => snapshots.give_up_compact(&to, error),
            }
            operation.finish(&result);
            result
        };
        Ok(work.instrument(span))
    }

    async fn compact(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        to: &SnapshotTag,
        operation: &Arc<Running>,
    ) -> Result<(), EngineError> {
        let _turn = operation.unless_cancelled(turn(&self.compacting)).await??;
        // Again: until the reservation it could have been removed.
        let source = self.catalog.ready(tag)?;
        let device_state = source.manifest.device_state;
        let made = {
            let (snapshots, operation) = (Arc::clone(self), Arc::clone(operation));
            blocking(move || {
                // It may be removed by force meanwhile.
                let _held = snapshots.files.hold(&source.manifest);
                snapshots
                    .write_compacted(&source, &operation)
                    .inspect_err(|error| snapshots.note_damage(&source.tag, error))
            })
            .await??
        };
        let sealed = operation.commit("the snapshot is complete").and_then(|()| {
            self.catalog.enter(to, SnapshotStatus::Ready, |row| {
                row.manifest.layers = made.layers.iter().cloned().collect();
                row.manifest.overlays = made.overlays.iter().cloned().collect();
                row.manifest.parent_tag = None;
                row.manifest.device_state = device_state;
            })
        });
        if sealed.is_err() {
            self.files.remove_files(&made);
        }
        sealed.map(drop)
    }

    /// Writes the one layer and the one overlay of the new snapshot. Leaves nothing when it fails.
    fn write_compacted(
        &self,
        source: &SnapshotRow,
        operation: &Running,
    ) -> Result<FileSet, EngineError> {
        let mut made = FileSet::default();
        let written = self.try_write_compacted(source, operation, &mut made);
        if written.is_err() {
            self.files.remove_files(&made);
        }
        written.map(|()| made)
    }

    fn try_write_compacted(
        &self,
        source: &SnapshotRow,
        operation: &Running,
        made: &mut FileSet,
    ) -> Result<(), EngineError> {
        let device_state = self.require_device_state(source)?;
        let chain = self.open_layers(source)?;
        let disk = self.image_of(source)?.root_disk;
        operation.check()?;
        // The disk first: it is the smaller part, and can fail for more reasons.
        operation.step("merge the disk");
        if let Some((base, bytes)) = disk {
            self.require_overlays(source, &base)?;
            let (overlays, copier) = (&source.manifest.overlays, self.disk_tool.copier(bytes));
            let merged = self.files.merge_overlays(&base, bytes, overlays, &copier)?;
            made.overlays.insert(merged);
        }
        operation.check()?;
        operation.step("merge the memory");
        let layers = chain.iter().collect::<Vec<_>>();
        let flat = self.files.with_room(|| flatten(&self.files, &layers));
        let layer = flat.map_err(|error| damaged(source, error))?.index.id;
        let target = self.files.hot_device_state(&layer);
        made.layers.insert(layer);
        let copied = std::fs::copy(&device_state, &target);
        copied.map(drop).map_err(|source| {
            StoreError::File { what: "copy device state to", path: target, source }.into()
        })
    }

    /// Marks the new snapshot as failed. It may be gone already, with the original, by a cascade.
    fn give_up_compact(&self, to: &SnapshotTag, error: &EngineError) {
        let text = describe(error);
        tracing::info!(snapshot = %to, error = %text, "a snapshot was not compacted");
        let failed = self.catalog.enter(to, SnapshotStatus::Failed, |row| {
            row.manifest.parent_tag = None;
            row.error = Some(text);
        });
        match failed {
            Ok(_) | Err(EngineError::UnknownSnapshot { .. }) => {}
            Err(error) => tracing::error!(snapshot = %to, %error, "cannot mark it as failed"),
        }
    }
}
