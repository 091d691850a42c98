//! What the engine tells its callers: plain values, a copy of the truth at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forkd_types::network::{Alias, NetworkName, NetworkPolicy};
use forkd_types::{
    AtEnd, BranchMode, BranchPhase, ByteCount, CpuModel, Isolation, MachineSize, OperationId,
    Owner, PhaseTimes, SandboxId, SandboxState, SnapshotStatus, SnapshotTag, StartPhase,
};
use forkd_vmm::CgroupLimits;

use crate::EngineError;

/// An image that templates can be built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub description: String,
}

/// What a template boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateImage {
    /// An image of the image directory, by its name.
    Named(String),
    /// An OCI image, by its reference. It is pulled. For admins alone: the daemon reads its files
    /// and uses its credentials for it.
    Reference(String),
}

/// A template to be built.
#[derive(Debug, Clone)]
pub struct TemplateRequest {
    /// The tag of the snapshot to make; an existing one is an error.
    pub tag: SnapshotTag,
    /// What it boots.
    pub image: TemplateImage,
    /// Guest RAM and virtual CPUs.
    pub size: MachineSize,
    /// What guests see as their processor.
    pub cpu: CpuModel,
    /// Program run in the guest before the freeze; empty for none. A non-zero exit fails the build.
    pub warm: Vec<String>,
    /// Whether all may look at it and start from it. For admins alone.
    pub shared: bool,
    /// Whether it, and what is branched from it, stay on this host.
    pub private: bool,
}

/// A snapshot, as far as callers care.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Its name.
    pub tag: SnapshotTag,
    /// Where its durable files are.
    pub directory: PathBuf,
    /// When it was requested.
    pub created_at: SystemTime,
    /// The sandbox that it was branched from; none for a template.
    pub branched_from: Option<SandboxId>,
    /// The snapshot whose layers it builds on.
    pub parent_tag: Option<SnapshotTag>,
    /// Whether it can be used.
    pub status: SnapshotStatus,
    /// Whether it is also on disk and survives a reboot.
    pub durable: bool,
    /// The operation that makes it, while it is being written.
    pub operation: Option<OperationId>,
    /// The image at the root of its lineage.
    pub image: String,
    /// Guest RAM.
    pub memory: ByteCount,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// What guests see as their processor.
    pub cpu: CpuModel,
    /// Figures of the branch that made it; none for a template.
    pub branch: Option<BranchReport>,
    /// Why it failed.
    pub error: Option<String>,
    /// How many layers a child of it maps.
    pub chain_depth: usize,
    /// Bytes of its own memory layer.
    pub memory_layer: ByteCount,
    /// Whether all may look at it and start from it, not only its owner.
    pub shared: bool,
    /// Whether it, and what is branched from it, stay on this host.
    pub private: bool,
}

/// Figures of one branch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BranchReport {
    /// Which pages were captured, and when.
    pub mode: BranchMode,
    /// Every phase; `publish` appears once it is over.
    pub phases: PhaseTimes<BranchPhase>,
    /// The pause window: from the pause request to the confirmed resume.
    pub pause: Duration,
    /// The same as the VMM's own STOP and RESUME events tell it: shorter by the way to and from.
    pub held_by_vmm: Option<Duration>,
    /// From the request to the usable snapshot.
    pub ready: Duration,
    /// Pages that may have been written since the last branch, and were looked at.
    pub captured: ByteCount,
    /// Those of them that differ from what the layers below have.
    pub dirty: ByteCount,
    /// Bytes stored: without zero pages.
    pub stored: ByteCount,
    /// Bytes of the dirty pages among them: what a diff stores.
    pub dirty_stored: ByteCount,
    /// The pause that mode `diff` had, or would have had in place of `full`: the pause window
    /// without the time for pages beyond the dirty set, which are copied last. None for `live`,
    /// where nothing of it happens.
    pub diff_pause: Option<Duration>,
    /// Write faults of the guest that were served during the capture.
    pub faults: u64,
    /// Median time from reading a fault to its release.
    pub fault_service_median: Option<Duration>,
    /// The longest such time.
    pub fault_service_max: Option<Duration>,
}

/// A sandbox, as far as callers care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its name.
    pub id: SandboxId,
    /// The snapshot that it was started from.
    pub snapshot_tag: SnapshotTag,
    /// When it was requested.
    pub created_at: SystemTime,
    /// The VMM's process.
    pub pid: Option<u32>,
    /// Where it stands.
    pub state: SandboxState,
    /// Branches taken from it.
    pub branch_count: u64,
    /// How often the network gateway has refused what it wanted to reach, as far as this daemon
    /// knows.
    pub network_refusals: u64,
    /// Host name given at the renewal.
    pub hostname: String,
    /// From the request until it was handed out.
    pub started_in: Option<Duration>,
    /// How long each phase of that took.
    pub start_phases: PhaseTimes<StartPhase>,
    /// Why it is dead.
    pub error: Option<String>,
    /// It is dead because it reached its memory limit.
    pub memory_limit_reached: bool,
    /// How far its VMM is kept from the host.
    pub isolation: Isolation,
    /// What its VMM may use of the host.
    pub limits: CgroupLimits,
    /// The address of its network device, if it has one.
    pub guest_address: Option<Ipv4Addr>,
    /// What its creator wanted.
    pub options: SandboxOptions,
    /// When it will be removed, unless it is used before.
    pub expires_at: Option<SystemTime>,
}

/// Whose a sandbox is, and what its creator may want of it. What is started from its snapshots
/// inherits its memory limit, its own network, and what it may reach unless another policy is
/// given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxOptions {
    /// To whom it belongs: its creator, whatever is said here.
    pub owner: Owner,
    /// Words of its creator's, which mean nothing here.
    pub metadata: Arc<BTreeMap<String, String>>,
    /// It ends so long after it was requested.
    pub ttl: Option<Duration>,
    /// What the end of that time does.
    pub at_end: AtEnd,
    /// It is removed when it was not used for so long: no request to its guest or for a branch.
    pub idle_timeout: Option<Duration>,
    /// Its VMM may not have more memory than this: private pages of the guest, and its own.
    pub memory_limit: Option<ByteCount>,
    /// Its VMM has a network namespace of its own.
    pub own_network: bool,
    /// What it may reach. None: what the source of its snapshot could, or what is the default.
    pub network: Option<NetworkPolicy>,
    /// Private networks of its owner's that it is to be a member of when it starts.
    pub join: BTreeSet<NetworkName>,
    /// Those that it is a member of, and its alias in each.
    pub memberships: BTreeMap<NetworkName, Alias>,
}

impl SandboxOptions {
    /// What other members of its networks call it besides its id: its creator's word `name`, if a
    /// part of a domain name can be so.
    pub(crate) fn member_name(&self) -> Option<String> {
        let name = self.metadata.get("name")?;
        name.parse::<NetworkName>().ok().map(String::from)
    }

    /// What it may reach, once that is settled.
    #[must_use]
    pub fn policy(&self) -> NetworkPolicy {
        self.network.clone().unwrap_or_default()
    }
}

/// A private network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: NetworkName,
    /// When it was made, in seconds since 1970.
    pub created_at_unix: u64,
    /// By their aliases.
    pub members: Vec<Sandbox>,
}

/// A branch to be taken.
#[derive(Debug, Clone)]
pub struct BranchRequest {
    /// Tag of the new snapshot, one of the caller's; by default
    /// `branch-<sandbox>-<time>-<random>`.
    pub tag: Option<SnapshotTag>,
    /// Which pages, when.
    pub mode: BranchMode,
    /// Children to start from it at once.
    pub children: u32,
    /// What the children may reach. None: what the source may. The snapshot keeps the source's.
    pub network: Option<NetworkPolicy>,
    /// Private networks that the children join. None: those of the source.
    pub join: Option<BTreeSet<NetworkName>>,
    /// Whether the snapshot, and what is branched from it, stay on this host. What is branched
    /// from a private one is private anyway.
    pub private: bool,
    /// When to answer.
    pub wait: Wait,
}

/// When a branch is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// When the source runs again: the snapshot is still `writing`. Excludes children.
    UntilResumed,
    /// When the snapshot is ready and all children have been started.
    UntilReady,
}

/// What a branch gave.
#[derive(Debug)]
pub struct Branch {
    /// The new snapshot.
    pub snapshot: Snapshot,
    /// One result for each child asked for.
    pub children: Vec<Result<Sandbox, EngineError>>,
}

/// What stands in the way of removing a snapshot, and what to do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletePolicy {
    /// Refuse when anything depends on it.
    Refuse,
    /// Remove dependent sandboxes and snapshots too.
    Cascade,
    /// Remove it alone: what depends on it keeps working.
    Force,
}

/// What becomes of sandboxes when an engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtShutDown {
    /// They are removed.
    Remove,
    /// Their VMs run on, for the next engine on the same directories to take over.
    Leave,
}

/// How a long request comes along; a percentage would be a guess.
pub trait ProgressSink: Send + Sync {
    /// A new step has begun, such as `boot the guest`.
    fn step(&self, name: &str);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl ProgressSink for NoProgress {
    fn step(&self, _name: &str) {}
}
