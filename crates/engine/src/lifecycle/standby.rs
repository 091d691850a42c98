//! Keeps VMMs standing by: as many as are configured, of the shapes that late starts tell of, some
//! of them with the state of a snapshot. They are started and fitted one at a time, while nothing
//! else is, and ended when nobody has wanted one in a while, when their snapshot is removed, when
//! the host is short of memory, or when the engine ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::{OverlayId, limit};

use super::Lifecycle;
use crate::background::blocking;
use crate::host::connect_agent;
use crate::sandboxes::{Origin, Shape, StandbyVmm, Step};
use crate::{EngineError, describe};

/// Between two looks at whether the host is busy with what somebody waits for.
const BUSY_POLL: Duration = Duration::from_millis(20);

impl Lifecycle {
    /// Keeps VMMs standing by until the engine ends.
    pub(crate) async fn keep_standby(self: Arc<Self>) {
        while !self.background.is_ending() {
            match self.standby.step(|origin| self.may_be_fitted(origin)) {
                Step::Start(shape) => {
                    if self.is_busy() {
                        self.standby.hold_back();
                        self.pause_for(BUSY_POLL).await;
                    } else if let Err(error) = self.start_standby(&shape).await {
                        tracing::warn!(%error, "no VMM stands by");
                        self.standby.forget(&shape);
                    }
                }
                Step::Fit(index, origin) => {
                    if self.is_busy() {
                        self.pause_for(BUSY_POLL).await;
                    } else if let Some(standby) = self.standby.take(index)
                        && let Err(error) = self.fit_standby(standby, &origin).await
                    {
                        let (snapshot, problem) = (&origin.tag, describe(&error));
                        tracing::info!(%snapshot, problem, "no VMM is made ready for it");
                        self.standby.forget_origin(&origin);
                    }
                }
                Step::End(index) => {
                    let ended = self.standby.take(index);
                    // It waits for the process.
                    blocking(move || drop(ended)).await.ok();
                }
                Step::Wait(until) => tokio::select! {
                    () = self.standby.changed() => {}
                    () = self.snapshots.catalog.lost() => {}
                    () = self.background.ending() => {}
                    () = reached(until) => {}
                },
            }
        }
        let left = self.standby.take_all();
        blocking(move || drop(left)).await.ok();
    }

    async fn pause_for(&self, time: Duration) {
        tokio::select! {
            () = self.background.ending() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Whether somebody waits for a start or a branch, which must not be made slower.
    fn is_busy(&self) -> bool {
        self.host.starting.available_permits() < limit::CHILDREN_STARTING_MAX
            || self.sandboxes.admission.has_branches()
    }

    async fn start_standby(self: &Arc<Self>, shape: &Shape) -> Result<(), EngineError> {
        let (sandboxes, files) = (Arc::clone(&self.sandboxes), Arc::clone(&self.snapshots.files));
        let mut standby = StandbyVmm::reserve(shape.clone(), sandboxes, files);
        let this = Arc::clone(self);
        let started = blocking(move || {
            let files = &this.snapshots.files;
            if let Some((_, bytes)) = &standby.waiting.shape.disk {
                standby.overlay = Some(files.create_overlay(*bytes)?);
            }
            let overlays: Vec<OverlayId> = standby.overlay.iter().cloned().collect();
            let spec = this.child_spec(&standby.id, &standby.waiting.shape, &overlays)?;
            standby.vm = Some(this.host.driver.start(spec)?);
            Ok::<_, EngineError>(standby)
        });
        let mut standby = started.await??;
        let socket: Option<PathBuf> = standby.vm.as_ref().map(|vm| vm.spec().agent_socket());
        let Some(socket) = socket else { return Ok(()) };
        standby.agent = Some(connect_agent(&socket).await?);
        self.standby.add(standby);
        Ok(())
    }

    /// Where there is no space for what is needed, VMMs that are fitted end before anything fails.
    pub(crate) fn spare_fitted(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.snapshots.files.spare_by(move || {
            if let Some(this) = this.upgrade() {
                this.standby.end_fitted();
            }
        });
    }

    /// Whether a VMM may have this state before a child of it is asked for. It keeps the copies in
    /// the hot directory that it maps; where there is a budget for those, what is spared is for the
    /// budget to say.
    fn may_be_fitted(&self, origin: &Origin) -> bool {
        !self.snapshots.files.has_budget()
            && self.snapshots.catalog.ready(&origin.tag).is_ok_and(|row| is_of(&row, origin))
    }

    /// Gives a VMM the state of a snapshot. What stands by is what its child would be right before
    /// it renews itself.
    async fn fit_standby(
        self: &Arc<Self>,
        mut standby: StandbyVmm,
        origin: &Origin,
    ) -> Result<(), EngineError> {
        let row = self.snapshots.catalog.ready(&origin.tag)?;
        self.host.require_compatible(&row)?;
        let snapshots = &self.snapshots;
        let set = FileSet::from(&row.manifest);
        // Who removes the snapshot meanwhile leaves the files to it.
        snapshots.catalog.while_ready(&row, || snapshots.files.claim_also(&standby.id, set))?;
        let this = Arc::clone(self);
        let fitted = blocking(move || this.fit(&mut standby, &row).map(|()| (standby, row)));
        let (mut standby, row) = fitted.await??;
        // Said of the row that it was fitted with, which may be another by now.
        standby.waiting.origin = Some(Origin::from(&row));
        self.standby.add(standby);
        Ok(())
    }
}

/// Whether the row is of this very snapshot.
fn is_of(row: &SnapshotRow, origin: &Origin) -> bool {
    Origin::from(row) == *origin
}

/// Waits until then, or for ever.
async fn reached(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
