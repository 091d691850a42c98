//! Keeps VMMs standing by: as many as are configured, of the shapes that late starts tell of. They
//! are started one at a time, while nothing else is, and ended when nobody has wanted one in a
//! while, when the host is short of memory, or when the engine ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_types::{OverlayId, limit};

use super::Lifecycle;
use crate::EngineError;
use crate::background::blocking;
use crate::host::connect_agent;
use crate::sandboxes::{Shape, StandbyVmm, Step};

/// Between two looks at whether the host is busy with what somebody waits for.
const BUSY_POLL: Duration = Duration::from_millis(20);

impl Lifecycle {
    /// Keeps VMMs standing by until the engine ends.
    pub(crate) async fn keep_standby(self: Arc<Self>) {
        while !self.background.is_ending() {
            match self.standby.step() {
                Step::Start(shape) => {
                    if self.is_busy() {
                        self.standby.hold_back();
                        self.pause_for(BUSY_POLL).await;
                    } else if let Err(error) = self.start_standby(&shape).await {
                        tracing::warn!(%error, "no VMM stands by");
                        self.standby.forget(&shape);
                    }
                }
                Step::End(index) => {
                    let ended = self.standby.take(index);
                    // It waits for the process.
                    blocking(move || drop(ended)).await.ok();
                }
                Step::Wait(until) => tokio::select! {
                    () = self.standby.changed() => {}
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
            if let Some((_, bytes)) = &standby.shape.disk {
                standby.overlay = Some(files.create_overlay(*bytes)?);
            }
            let overlays: Vec<OverlayId> = standby.overlay.iter().cloned().collect();
            let spec = this.child_spec(&standby.id, &standby.shape, &overlays)?;
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
}

/// Waits until then, or for ever.
async fn reached(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
