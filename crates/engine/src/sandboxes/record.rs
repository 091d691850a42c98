//! What is written down of a running sandbox, so that another daemon can take its VM over.
//!
//! Only what the VMM cannot be asked for, or is not believed: where guest RAM is in its address
//! space, which layers are mapped there, which files it was started from, what its disk consists
//! of.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::{FileSet, SandboxOptionsRow, SandboxRow, SnapshotManifest};
use forkd_types::{Accelerator, ByteCount, OverlayId};
use forkd_vmm::{BootSource, Jail, VmmCgroup};
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
    /// Its overlays. None where an earlier forkd has written this down.
    #[serde(default)]
    pub(crate) overlays: Option<DiskRecord>,
    pub(crate) hostname: String,
    pub(crate) branch_count: u64,
    /// Its cgroups.
    #[serde(default)]
    pub(crate) cgroup: Option<VmmCgroup>,
    /// What it is confined to.
    #[serde(default)]
    pub(crate) jail: Option<Jail>,
}

/// The overlays of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskRecord {
    /// The lowest first; the last takes the writes.
    chain: Vec<OverlayId>,
    /// One that the VMM was given, or is being given: for the next branch, or for a merge.
    next: Option<OverlayId>,
    /// See [`Machine::inherited`].
    pub(crate) inherited: ByteCount,
}

impl DiskRecord {
    fn of(machine: &Machine) -> Self {
        let standby = machine.standby.as_ref().map(|standby| standby.id.clone());
        Self {
            chain: machine.overlays.clone(),
            next: machine.expected.clone().or(standby),
            inherited: machine.inherited,
        }
    }

    /// Whether a disk consists of `named`, the lowest first: of what was written down; or of what a
    /// branch or a merge has made of that, which was under way.
    pub(crate) fn fits(&self, named: &[OverlayId]) -> bool {
        let Some(next) = &self.next else { return named == self.chain };
        let branched = self.chain.iter().chain([next]);
        let merged = [next].into_iter().chain(self.chain.last());
        named == self.chain || named.iter().eq(branched) || named.iter().eq(merged)
    }
}

impl std::fmt::Display for DiskRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&listed(&self.chain))?;
        self.next.as_ref().map_or(Ok(()), |next| write!(f, ", perhaps with {next}"))
    }
}

/// Overlays in a sentence.
pub(crate) fn listed(overlays: &[OverlayId]) -> String {
    let names: Vec<String> = overlays.iter().map(OverlayId::to_string).collect();
    names.join(", ")
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
            overlays: Some(DiskRecord::of(machine)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_fits_what_was_written_down_and_what_was_under_way_and_nothing_else() {
        let [a, b, c, foreign] = [(); 4].map(|()| OverlayId::random());
        let chain = vec![a.clone(), b.clone()];
        let calm = DiskRecord { chain: chain.clone(), ..DiskRecord::default() };
        let busy = DiskRecord { next: Some(c.clone()), ..calm.clone() };
        assert!(calm.fits(&chain) && busy.fits(&chain));
        let branched = [a.clone(), b.clone(), c.clone()];
        let merged = [c.clone(), b.clone()];
        for named in [branched.as_slice(), merged.as_slice()] {
            assert!(busy.fits(named) && !calm.fits(named), "{named:?}");
        }
        let wrong: [&[OverlayId]; 8] = [
            &[],
            &[b.clone(), a.clone()],
            std::slice::from_ref(&a),
            std::slice::from_ref(&b),
            &[a.clone(), foreign.clone()],
            &[foreign, b.clone()],
            &[c.clone(), a.clone()],
            &[a.clone(), c.clone(), b.clone()],
        ];
        for named in wrong {
            assert!(!calm.fits(named) && !busy.fits(named), "{named:?}");
        }
    }
}
