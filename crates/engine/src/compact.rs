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

use forkd_store::{SnapshotManifest, SnapshotRow, StoreError, flatten};
use forkd_types::{LayerId, OperationId, OverlayId, SnapshotStatus, SnapshotTag};
use tracing::Instrument as _;

use crate::EngineError;
use crate::branch;
use crate::engine::Inner;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::{
    blocking, damaged_layer, image_of, open_layers, require_device_state, require_overlays,
};

/// Takes the tag `to` and gives the work of making it of the ready snapshot `tag`.
pub(crate) fn begin(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    to: &SnapshotTag,
) -> Result<impl Future<Output = Result<(), EngineError>> + Send + use<>, EngineError> {
    let source = inner.catalog.ready(tag)?;
    let manifest = SnapshotManifest {
        layers: Vec::new(),
        overlays: Vec::new(),
        overlay_checksums: BTreeMap::new(),
        device_state: None,
        parent_tag: Some(tag.clone()),
        ..source.manifest
    };
    let id = OperationId::random();
    inner.reserve(to, manifest, &id)?;
    let subject = Subject { snapshot: Some(to.clone()), sandbox: None };
    let operation = inner.operations.start(id, OperationKind::Compact, subject);
    let span = tracing::info_span!("compact", snapshot = %to, operation = %operation.id());
    let (inner, tag, to) = (Arc::clone(inner), tag.clone(), to.clone());
    let work = async move {
        let operation = Arc::new(operation);
        let result = compact_reserved(&inner, &tag, &to, &operation).await;
        match &result {
            Ok(()) => {
                tracing::info!("compacted");
                branch::publish_in_background(&inner, &to);
            }
            Err(error) => give_up(&inner, &to, error),
        }
        operation.end(&result);
        result
    };
    Ok(work.instrument(span))
}

async fn compact_reserved(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    to: &SnapshotTag,
    operation: &Arc<Running>,
) -> Result<(), EngineError> {
    // One at a time: each may need as much room as all layers below it.
    let turn = operation.unless_cancelled(inner.compacting.acquire()).await?;
    let _turn = turn.map_err(|_| EngineError::Internal("shutting down".to_owned()))?;
    // Again: until the reservation it could have been removed.
    let source = inner.catalog.ready(tag)?;
    let device_state = source.manifest.device_state;
    let made = {
        let (inner, operation) = (Arc::clone(inner), Arc::clone(operation));
        blocking(move || {
            // It may be removed by force meanwhile.
            let _held = inner.hold(&source.manifest);
            write(&inner, &source, &operation)
                .inspect_err(|error| inner.note_damage(&source.tag, error))
        })
        .await??
    };
    if let Err(error) = operation.commit("the snapshot is complete") {
        made.remove(inner);
        return Err(error);
    }
    let Parts { layer, overlay } = &made;
    let sealed = inner.catalog.update(&inner.registry, to, |row| {
        row.manifest.layers = vec![layer.clone()];
        row.manifest.overlays = overlay.iter().cloned().collect();
        row.manifest.parent_tag = None;
        row.manifest.device_state = device_state;
        row.status = SnapshotStatus::Ready;
    });
    if sealed.is_err() {
        made.remove(inner);
    }
    sealed.map(drop)
}

/// The files of the new snapshot.
struct Parts {
    layer: LayerId,
    overlay: Option<OverlayId>,
}

impl Parts {
    fn remove(&self, inner: &Inner) {
        inner.files.remove_layer(&self.layer);
        if let Some(id) = &self.overlay {
            inner.files.remove_overlay(id);
        }
    }
}

fn write(inner: &Inner, source: &SnapshotRow, operation: &Running) -> Result<Parts, EngineError> {
    let manifest = &source.manifest;
    let device_state = require_device_state(inner, source)?;
    let chain = open_layers(inner, source)?;
    let disk = image_of(inner, source)?.root_disk;
    require_overlays(inner, source)?;
    // The disk first: it is the smaller part, and can fail for more reasons.
    let merge = |(base, bytes): (std::path::PathBuf, _)| {
        inner.files.merge_overlays(&base, bytes, &manifest.overlays)
    };
    operation.check()?;
    operation.step("merge the disk");
    let overlay = disk.map(merge).transpose()?;
    let remove_overlay = || overlay.iter().for_each(|id| inner.files.remove_overlay(id));
    operation.check().inspect_err(|_| remove_overlay())?;
    operation.step("merge the memory");
    let flat = inner.with_room(|| flatten(&inner.files, &chain.iter().collect::<Vec<_>>()));
    let flat = flat.inspect_err(|_| remove_overlay()).map_err(|e| damaged_layer(source, e))?;
    let layer = flat.index.id;
    let parts = Parts { layer, overlay };
    let target = inner.files.hot_device_state(&parts.layer);
    let copied = std::fs::copy(&device_state, &target).map(drop).map_err(|source| {
        parts.remove(inner);
        StoreError::File { what: "copy device state to", path: target, source }
    });
    copied?;
    Ok(parts)
}

/// Marks the new snapshot as failed. It may be gone already, with the original, by a cascade.
fn give_up(inner: &Inner, to: &SnapshotTag, error: &EngineError) {
    let text = branch::describe(error);
    tracing::info!(snapshot = %to, error = %text, "a snapshot was not compacted");
    let failed = inner.catalog.update(&inner.registry, to, |row| {
        row.manifest.parent_tag = None;
        row.status = SnapshotStatus::Failed;
        row.error = Some(text);
    });
    match failed {
        Ok(_) | Err(EngineError::UnknownSnapshot { .. }) => {}
        Err(error) => tracing::error!(snapshot = %to, %error, "cannot mark it as failed"),
    }
}
