//! Making a ready snapshot durable, in the background, one at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use forkd_types::{BranchPhase, OperationId, SnapshotStatus, SnapshotTag};
use tracing::Instrument as _;

use super::describe;
use crate::EngineError;
use crate::engine::Inner;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::blocking;
use crate::view;

/// Begins to publish the snapshot `tag`.
pub(crate) fn in_background(inner: &Arc<Inner>, tag: &SnapshotTag) {
    let (inner, tag) = (Arc::clone(inner), tag.clone());
    let tasks = inner.tasks.clone();
    let runtime = inner.runtime.clone();
    let subject = Subject { snapshot: Some(tag.clone()), sandbox: None };
    let id = OperationId::random();
    let operation = inner.operations.start(id, OperationKind::Publish, subject);
    let span =
        tracing::info_span!(parent: None, "publish", snapshot = %tag, operation = %operation.id());
    let work = async move {
        let operation = Arc::new(operation);
        let published = in_turn(&inner, &tag, &operation).await;
        operation.end(&published);
        match published {
            Ok(()) => tracing::info!("published"),
            Err(EngineError::UnknownSnapshot { .. } | EngineError::Cancelled { .. }) => {
                tracing::info!("not published, because nobody wants it any more");
            }
            Err(error) => {
                let error = describe(&error);
                tracing::warn!(%error, "a snapshot is not durable");
            }
        }
    };
    tasks.spawn_on(work.instrument(span), &runtime);
}

/// Publishes once it is its turn.
async fn in_turn(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    operation: &Arc<Running>,
) -> Result<(), EngineError> {
    let turn = operation.unless_cancelled(inner.publishing.acquire()).await?;
    let _turn = turn.map_err(|_| EngineError::Internal("shutting down".to_owned()))?;
    operation.commit("it is being written")?;
    operation.step(BranchPhase::Publish.name());
    let (inner, tag, operation) = (Arc::clone(inner), tag.clone(), Arc::clone(operation));
    blocking(move || publish(&inner, &tag, &operation)).await?
}

fn publish(inner: &Inner, tag: &SnapshotTag, operation: &Running) -> Result<(), EngineError> {
    let begun = Instant::now();
    let row = inner.catalog.get(tag)?;
    if row.status != SnapshotStatus::Ready {
        return Ok(());
    }
    if let Some(probe) = &inner.config.probe {
        probe.before_publish(tag)?;
    }
    // First, because children are started soon: it costs them more than it delays this.
    view::make(inner, &row.manifest.layers);
    let mut overlay_bytes = BTreeMap::new();
    let parts = row.manifest.layers.len() + row.manifest.overlays.len();
    let mut done = 0..;
    let mut part_done = || operation.progress(done.next().unwrap_or_default(), parts as u64);
    part_done();
    for id in &row.manifest.layers {
        inner.files.publish_layer(id)?;
        part_done();
    }
    for id in &row.manifest.overlays {
        overlay_bytes.insert(id.clone(), inner.files.publish_overlay(id)?);
        part_done();
    }
    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    inner.catalog.update(&inner.registry, tag, |row| {
        row.durable = true;
        row.manifest.overlay_bytes = overlay_bytes;
        if let Some(figures) = &mut row.figures {
            figures.phases_us.insert(BranchPhase::Publish.name().to_owned(), took);
        }
    })?;
    Ok(())
}
