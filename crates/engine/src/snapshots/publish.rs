//! Making a ready snapshot durable, in the background, one at a time.

use std::sync::Arc;
use std::time::Instant;

use forkd_store::FileSet;
use forkd_types::{BranchPhase, OperationId, SnapshotStatus, SnapshotTag, limit};
use tracing::Instrument as _;

use super::Snapshots;
use super::parts::damaged;
use crate::background::{blocking, turn};
use crate::operation::{OperationKind, Running, Subject};
use crate::{EngineError, describe};

impl Snapshots {
    /// Begins to publish the snapshot `tag`. What fails is tried again until it is done, because
    /// space may come back, or until the snapshot is gone.
    pub(crate) fn publish_in_background(self: &Arc<Self>, tag: &SnapshotTag) {
        let (snapshots, tag) = (Arc::clone(self), tag.clone());
        let subject = Subject::of_snapshot(&tag);
        let id = OperationId::random();
        let operation = self.operations.start(id, OperationKind::Publish, subject);
        let id = operation.id();
        let span = tracing::info_span!(parent: None, "publish", snapshot = %tag, operation = %id);
        let work = async move {
            let operation = Arc::new(operation);
            let published = snapshots.publish_until_done(&tag, &operation).await;
            operation.finish(&published);
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
        self.background.spawn(work.instrument(span));
    }

    /// Publishes, again and again if it fails.
    async fn publish_until_done(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        operation: &Arc<Running>,
    ) -> Result<(), EngineError> {
        let mut told = None;
        loop {
            let error = match self.publish_in_turn(tag, operation).await {
                Ok(()) => return Ok(()),
                Err(error @ EngineError::SnapshotDamaged { .. }) => {
                    self.note_damage(tag, &error);
                    return Err(error);
                }
                Err(
                    error @ (EngineError::UnknownSnapshot { .. } | EngineError::Cancelled { .. }),
                ) => return Err(error),
                Err(error) => error,
            };
            let words = describe(&error);
            if told.as_ref() != Some(&words) {
                tracing::warn!(error = %words, "a snapshot is not durable; it is tried again");
            }
            told = Some(words);
            tokio::select! {
                () = self.background.ending() => return Err(error),
                () = tokio::time::sleep(limit::PUBLISH_RETRY) => {}
            }
        }
    }

    /// Publishes once it is its turn.
    async fn publish_in_turn(
        self: &Arc<Self>,
        tag: &SnapshotTag,
        operation: &Arc<Running>,
    ) -> Result<(), EngineError> {
        let _turn = operation.unless_cancelled(turn(&self.publishing)).await??;
        operation.commit("it is being written")?;
        operation.step(BranchPhase::Publish.name());
        let (snapshots, tag, operation) = (Arc::clone(self), tag.clone(), Arc::clone(operation));
        blocking(move || snapshots.publish(&tag, &operation)).await?
    }

    fn publish(&self, tag: &SnapshotTag, operation: &Running) -> Result<(), EngineError> {
        let begun = Instant::now();
        let row = self.catalog.get(tag)?;
        if row.status != SnapshotStatus::Ready || row.durable {
            return Ok(());
        }
        if let Some(probe) = &self.probe {
            probe.before_publish(tag)?;
        }
        // First, because children are started soon: it costs them more than it delays this.
        self.make_view(&row.manifest.layers);
        let parts = row.manifest.layers.len() + row.manifest.overlays.len();
        let mut done = 0..;
        let mut part_done = || operation.progress(done.next().unwrap_or_default(), parts as u64);
        part_done();
        let published = self.files.publish_parts(&row.manifest, &mut part_done);
        if !self.catalog.get(tag).is_ok_and(|now| now.created_at == row.created_at) {
            // Removed meanwhile, when these files could not be seen.
            self.files.collect(&FileSet::from(&row.manifest));
            return Ok(());
        }
        let overlay_checksums = published.map_err(|error| damaged(&row, error))?;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.catalog.update(tag, |row| {
            row.durable = true;
            row.manifest.overlay_checksums = overlay_checksums;
            if let Some(figures) = &mut row.figures {
                figures.phases_us.insert(BranchPhase::Publish.name().to_owned(), took);
            }
        })?;
        self.files.keep_budget();
        Ok(())
    }
}
