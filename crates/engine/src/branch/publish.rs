//! Making a ready snapshot durable, in the background, one at a time.

use std::sync::Arc;
use std::time::Instant;

use forkd_types::{BranchPhase, SnapshotStatus, SnapshotTag, limit};

use super::describe;
use crate::EngineError;
use crate::collect::Candidates;
use crate::engine::Inner;
use crate::sandbox::{blocking, damaged_layer};
use crate::view;

/// Begins to publish the snapshot `tag`. What fails is tried again until it is done, because space
/// may come back, or until the snapshot is gone.
pub(crate) fn in_background(inner: &Arc<Inner>, tag: &SnapshotTag) {
    let (inner, tag) = (Arc::clone(inner), tag.clone());
    let tasks = inner.tasks.clone();
    let runtime = inner.runtime.clone();
    tasks.spawn_on(
        async move {
            let mut told = None;
            while let Err(error) = try_once(&inner, &tag).await {
                let error = describe(&error);
                if told.as_ref() != Some(&error) {
                    tracing::warn!(snapshot = %tag, %error, "a snapshot is not durable");
                }
                told = Some(error);
                tokio::select! {
                    () = inner.ending.cancelled() => return,
                    () = tokio::time::sleep(limit::PUBLISH_RETRY) => {}
                }
            }
        },
        &runtime,
    );
}

/// An error is worth another try.
async fn try_once(inner: &Arc<Inner>, tag: &SnapshotTag) -> Result<(), EngineError> {
    let Ok(_turn) = inner.publishing.acquire().await else { return Ok(()) };
    let work = {
        let (inner, tag) = (Arc::clone(inner), tag.clone());
        blocking(move || publish(&inner, &tag)).await
    };
    match work.and_then(|result| result) {
        Ok(()) | Err(EngineError::UnknownSnapshot { .. }) => Ok(()),
        Err(error @ EngineError::SnapshotDamaged { .. }) => {
            inner.note_damage(tag, &error);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn publish(inner: &Inner, tag: &SnapshotTag) -> Result<(), EngineError> {
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
    let published = inner.files.publish_parts(&row.manifest);
    if !inner.catalog.get(tag).is_ok_and(|now| now.created_at == row.created_at) {
        // Removed meanwhile, when these files could not be seen.
        let (layers, overlays) = (row.manifest.layers, row.manifest.overlays);
        inner.collect(&Candidates { layers, overlays });
        return Ok(());
    }
    let overlay_sums = published.map_err(|error| damaged_layer(&row, error))?;
    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    inner.catalog.update(&inner.registry, tag, |row| {
        row.durable = true;
        row.manifest.overlay_sums = overlay_sums;
        if let Some(figures) = &mut row.figures {
            figures.phases_us.insert(BranchPhase::Publish.name().to_owned(), took);
        }
    })?;
    inner.keep_budget();
    Ok(())
}
