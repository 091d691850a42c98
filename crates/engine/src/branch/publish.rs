//! Making a ready snapshot durable, in the background, one at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use forkd_types::{BranchPhase, SnapshotStatus, SnapshotTag};

use super::describe;
use crate::EngineError;
use crate::engine::Inner;
use crate::sandbox::blocking;
use crate::view;

/// Begins to publish the snapshot `tag`.
pub(crate) fn in_background(inner: &Arc<Inner>, tag: &SnapshotTag) {
    let (inner, tag) = (Arc::clone(inner), tag.clone());
    let tasks = inner.tasks.clone();
    let runtime = inner.runtime.clone();
    tasks.spawn_on(
        async move {
            let Ok(_turn) = inner.publishing.acquire().await else { return };
            let work = {
                let (inner, tag) = (Arc::clone(&inner), tag.clone());
                blocking(move || publish(&inner, &tag)).await
            };
            match work.and_then(|result| result) {
                Ok(()) | Err(EngineError::UnknownSnapshot { .. }) => {}
                Err(error) => {
                    let error = describe(&error);
                    tracing::warn!(snapshot = %tag, %error, "a snapshot is not durable");
                }
            }
        },
        &runtime,
    );
}

fn publish(inner: &Inner, tag: &SnapshotTag) -> Result<(), EngineError> {
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
    for id in &row.manifest.layers {
        inner.files.publish_layer(id)?;
    }
    let mut overlay_bytes = BTreeMap::new();
    for id in &row.manifest.overlays {
        overlay_bytes.insert(id.clone(), inner.files.publish_overlay(id)?);
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
