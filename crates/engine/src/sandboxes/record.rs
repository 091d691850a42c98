//! What is written down of a running sandbox, so that another daemon can take its VM over.
//!
//! Only what the VMM cannot be asked for: where guest RAM is in its address space, which layers are
//! mapped there, which files it was started from.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::{FileSet, SandboxOptionsRow, SandboxRow, SnapshotManifest};
use forkd_types::ByteCount;
use forkd_vmm::{Accelerator, BootSource, Jail, VmmCgroup};
use serde::{Deserialize, Serialize};

use super::{Machine, SandboxHandle};
use crate::{EngineError, SandboxOptions};

/// A machine that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineRecord {
    /// The snapshot that it runs over. The snapshot may have been removed since; its layers are
    /// kept for as long as the machine runs.
    pub(crate) origin: SnapshotManifest,
    pub(crate) accelerator: Accelerator,
    pub(crate) boot: BootSource,
    /// Where guest RAM is in the VMM.
    pub(crate) ram_address: u64,
    /// The root disk's base image and size, if there is one.
    pub(crate) disk: Option<(PathBuf, ByteCount)>,
    pub(crate) hostname: String,
    pub(crate) branch_count: u64,
    /// Its cgroups.
    #[serde(default)]
    pub(crate) cgroup: Option<VmmCgroup>,
    /// What it is confined to.
    #[serde(default)]
    pub(crate) jail: Option<Jail>,
}

impl MachineRecord {
    /// What is written down in `row`.
    pub(crate) fn read(row: &SandboxRow) -> Result<Self, EngineError> {
        let text = row.machine.as_deref().unwrap_or_default();
        serde_json::from_str(text).map_err(|error| EngineError::Internal(error.to_string()))
    }

    fn of(handle: &SandboxHandle, machine: &Machine) -> Self {
        let (spec, sandbox) = (machine.vm.spec(), handle.sandbox());
        Self {
            origin: machine.origin.clone(),
            accelerator: spec.accelerator,
            boot: spec.boot.clone(),
            ram_address: machine.vm.ram().address,
            disk: spec.disk.as_ref().map(|disk| disk.base.clone()).zip(machine.disk),
            hostname: sandbox.hostname,
            branch_count: sandbox.branch_count,
            cgroup: spec.confinement.cgroup.clone(),
            jail: spec.confinement.jail.clone(),
        }
    }
}

/// The row of a sandbox that has claimed `files`.
pub(crate) fn row_of(
    handle: &SandboxHandle,
    files: FileSet,
    process: Option<(u32, u64)>,
    machine: &Machine,
) -> Result<SandboxRow, EngineError> {
    let sandbox = handle.sandbox();
    let text = serde_json::to_string(&MachineRecord::of(handle, machine));
    Ok(SandboxRow {
        id: sandbox.id,
        snapshot_tag: sandbox.snapshot_tag,
        process,
        state: sandbox.state,
        created_at: sandbox.created_at,
        overlays: files.overlays.into_iter().collect(),
        options: sandbox.options.into(),
        machine: Some(text.map_err(|error| EngineError::Internal(error.to_string()))?),
    })
}

impl From<SandboxOptions> for SandboxOptionsRow {
    fn from(options: SandboxOptions) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            network: options.policy(),
            owner: options.owner,
            metadata: (*options.metadata).clone(),
            ttl_ms: options.ttl.map(ms),
            at_end: options.at_end,
            idle_timeout_ms: options.idle_timeout.map(ms),
            memory_limit: options.memory_limit,
            own_network: options.own_network,
            networks: options.memberships,
        }
    }
}

impl From<SandboxOptionsRow> for SandboxOptions {
    fn from(row: SandboxOptionsRow) -> Self {
        Self {
            owner: row.owner,
            metadata: Arc::new(row.metadata),
            ttl: row.ttl_ms.map(Duration::from_millis),
            at_end: row.at_end,
            idle_timeout: row.idle_timeout_ms.map(Duration::from_millis),
            memory_limit: row.memory_limit,
            own_network: row.own_network,
            network: Some(row.network),
            join: BTreeSet::new(),
            memberships: row.networks,
        }
    }
}

/// The cgroups that are written down of a sandbox's VMM.
pub(crate) fn recorded_cgroup(row: &SandboxRow) -> Option<VmmCgroup> {
    let record: MachineRecord = serde_json::from_str(row.machine.as_deref()?).ok()?;
    record.cgroup
}
