//! How much there is of everything, for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_netd_protocol::GatewayUsage;
use forkd_store::allocated_bytes;
use forkd_types::{ByteCount, SandboxState, SnapshotStatus, TimeHistogram};

use crate::background::blocking;
use crate::operation::{OperationKind, OperationState};
use crate::{Engine, EngineError, StandbyUsage, VmmMemory};

/// What the engine has and holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sandboxes by state.
    pub sandboxes: BTreeMap<&'static str, usize>,
    /// Snapshots by status.
    pub snapshots: BTreeMap<&'static str, usize>,
    /// Operations that run, by kind.
    pub operations: BTreeMap<&'static str, usize>,
    /// Bytes that files in the hot directory occupy.
    pub hot: ByteCount,
    /// Bytes that durable files occupy.
    pub durable: ByteCount,
    /// VMMs that stand by for sandboxes to come.
    pub standby: StandbyUsage,
    /// Memory of VMMs, of those that stand by too.
    pub vmm_memory: VmmMemory,
    /// What goes through the network gateway; none when it does not answer.
    pub network: Option<GatewayUsage>,
    /// How long write faults of guests took to be served, in all branches so far.
    pub fault_service: TimeHistogram,
}

impl Engine {
    /// The processes of VMMs that stand by for sandboxes to come.
    #[must_use]
    pub fn standby_pids(&self) -> Vec<u32> {
        self.lifecycle.standby.pids()
    }

    /// What stands by for sandboxes to come, and why not more does.
    #[must_use]
    pub fn standby(&self) -> StandbyUsage {
        self.lifecycle.standby.usage()
    }

    /// How much there is of everything. Looks at VMMs for at most about `within`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] when the look dies.
    pub async fn usage(&self, within: Duration) -> Result<Usage, EngineError> {
        let mut usage = Usage {
            fault_service: self.tally.fault_service(),
            sandboxes: SandboxState::ALL.map(|state| (state.name(), 0)).into(),
            snapshots: SnapshotStatus::ALL.map(|status| (status.name(), 0)).into(),
            operations: OperationKind::ALL.map(|kind| (kind.name(), 0)).into(),
            standby: self.standby(),
            network: self.lifecycle.networks.usage().await,
            ..Usage::default()
        };
        let mut pids = self.standby_pids();
        for sandbox in self.sandboxes() {
            *usage.sandboxes.entry(sandbox.state.name()).or_default() += 1;
            pids.extend(sandbox.pid);
        }
        for row in self.snapshots.catalog.list() {
            *usage.snapshots.entry(row.status.name()).or_default() += 1;
        }
        for operation in self.operations() {
            if operation.state == OperationState::Running {
                *usage.operations.entry(operation.kind.name()).or_default() += 1;
            }
        }
        let engine = self.clone();
        blocking(move || {
            let files = &engine.snapshots.files;
            usage.vmm_memory = engine.vmm_memories.look(&pids, within);
            usage.hot = allocated_bytes(files.hot());
            usage.durable = allocated_bytes(files.state());
            usage
        })
        .await
    }
}
