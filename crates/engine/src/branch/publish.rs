//! Making a ready snapshot durable, in the background, one at a time.

use std::sync::Arc;
use std::time::Instant;

use forkd_store::FileSet;
use forkd_types::{BranchPhase, OperationId, SnapshotStatus, SnapshotTag, limit};
use tracing::Instrument as _;

use super::describe;
use crate::EngineError;
use crate::engine::Inner;
use crate::operation::{OperationKind, Running, Subject};
use crate::sandbox::{blocking, damaged_layer};
use crate::view;

/// Begins to publish the snapshot `tag`. What fails is tried again until it is done, because space
/// may come back, or until the snapshot is gone.
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
        let published = until_done(&inner, &tag, &operation).await;
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

/// Publishes, again and again if it fails.
async fn until_done(
    inner: &Arc<Inner>,
    tag: &SnapshotTag,
    operation: &Arc<Running>,
) -> Result<(), EngineError> {
    let mut told = None;
    loop {
        let error = match in_turn(inner, tag, operation).await {
            Ok(()) => return Ok(()),
            Err(error @ EngineError::SnapshotDamaged { .. }) => {
                inner.note_damage(tag, &error);
                return Err(error);
            }
            Err(error @ (EngineError::UnknownSnapshot { .. } | EngineError::Cancelled { .. })) => {
                return Err(error);
            }
            Err(error) => error,
        };
        let words = describe(&error);
        if told.as_ref() != Some(&words) {
            tracing::warn!(error = %words, "a snapshot is not durable; it is tried again");
        }
        told = Some(words);
        tokio::select! {
            () = inner.ending.cancelled() => return Err(error),
            () = tokio::time::sleep(limit::PUBLISH_RETRY) => {}
        }
    }
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
    if row.status != SnapshotStatus::Ready || row.durable {
        return Ok(());
    }
    if let Some(probe) = &inner.config.probe {
        probe.before_publish(tag)?;
    }
    // First, because children are started soon: it costs them more than it delays this.
    view::make(inner, &row.manifest.layers);
    let parts = row.manifest.layers.len() + row.manifest.overlays.len();
    let mut done = 0..;
    let mut part_done = || operation.progress(done.next().unwrap_or_default(), parts as u64);
    part_done();
    let published = inner.files.publish_parts(&row.manifest, &mut part_done);
    if !inner.catalog.get(tag).is_ok_and(|now| now.created_at == row.created_at) {
        // Removed meanwhile, when these files could not be seen.
        inner.collect(&FileSet::from(&row.manifest));
        return Ok(());
    }
    let overlay_checksums = published.map_err(|error| damaged_layer(&row, error))?;
    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    inner.catalog.update(&inner.registry, tag, |row| {
        row.durable = true;
        row.manifest.overlay_checksums = overlay_checksums;
        if let Some(figures) = &mut row.figures {
            figures.phases_us.insert(BranchPhase::Publish.name().to_owned(), took);
        }
    })?;
    inner.keep_budget();
    Ok(())
}
