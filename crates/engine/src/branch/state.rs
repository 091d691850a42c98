//! What all branches share.

use std::sync::Arc;

use forkd_capture::HostFeatures;
use forkd_types::ByteCount;
use forkd_types::limit::Deadlines;
use tokio::runtime::Handle;

use crate::network::Networks;
use crate::operation::Operations;
use crate::sandboxes::Sandboxes;
use crate::snapshots::Snapshots;
use crate::tally::Tally;
use crate::{BranchProbe, EngineConfig};

/// Takes branches.
#[derive(Debug)]
pub(crate) struct Branches {
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) operations: Arc<Operations>,
    pub(super) tally: Arc<Tally>,
    /// What the overlays of one sandbox may take, if somebody has said so.
    pub(super) sandbox_disk: Option<ByteCount>,
    pub(super) deadlines: Deadlines,
    pub(super) features: HostFeatures,
    pub(super) networks: Arc<Networks>,
    pub(super) probe: Option<Arc<dyn BranchProbe>>,
    /// Where the guest agent's connection lives.
    pub(super) runtime: Handle,
}

impl Branches {
    pub(crate) fn new(
        config: &EngineConfig,
        snapshots: Arc<Snapshots>,
        sandboxes: Arc<Sandboxes>,
        operations: Arc<Operations>,
        tally: Arc<Tally>,
        networks: Arc<Networks>,
        runtime: Handle,
    ) -> Arc<Self> {
        let (deadlines, features) = (config.deadlines, config.features);
        let (sandbox_disk, probe) = (config.limits.each_sandbox.disk, config.probe.clone());
        Arc::new(Self {
            snapshots,
            sandboxes,
            operations,
            tally,
            sandbox_disk,
            deadlines,
            features,
            networks,
            probe,
            runtime,
        })
    }
}
