//! The product's logic: templates, sandboxes, branches.
//!
//! [`Engine`] is the facade. Behind it are components, each with its own state and lock, and each
//! given only what it needs:
//!
//! ```text
//! facade ──▶ lifecycle ──▶ branch ──▶ snapshots ──▶ operation, events
//!               │             │           │
//!               │             └──▶ sandboxes ──▶ guest
//!               └──▶ host, background
//! ```
//!
//! One task owns each VM (`lifecycle`); requests that touch the VM queue there, requests to the
//! guest agent go past it. What exists is in the store's registry, and in memory only what lives.
//!
//! Guarantees: a sandbox is handed out only after its guest agent confirmed an identity of its
//! own; a branch that fails leaves its source running and no usable snapshot; nothing that a guest
//! sends is believed without a bound.
//!
//! Does not do: HTTP, command lines, SQL, QMP.

mod background;
mod branch;
mod caller;
mod config;
mod domain;
mod error;
mod events;
mod facade;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod guest;
pub mod host;
mod lifecycle;
mod network;
mod operation;
mod sandboxes;
mod snapshots;
mod tally;
#[cfg(test)]
mod tests;

pub use branch::{BranchProbe, ProbedBranch};
pub use caller::{Caller, Role};
pub use config::{
    AcceleratorChoice, EngineConfig, IsolationPolicy, UnknownAccelerator, UnknownIsolation,
};
pub use domain::{
    AtShutDown, Branch, BranchReport, BranchRequest, DeletePolicy, ImageInfo, Network, NoProgress,
    ProgressSink, Sandbox, SandboxOptions, Snapshot, TemplateImage, TemplateRequest, Wait,
};
pub use error::{EngineError, describe};
pub use events::{Change, EventReader, Next, OperationChange, SandboxChange, SnapshotChange};
pub use facade::{Begun, Dependents, Engine, OpenFile, RunningCell, Usage};
pub use forkd_artifact::{KeyError, PublicKey};
pub use forkd_capture::{CapturePlan, HostFeatures};
pub use forkd_netd_protocol::{FlowRecord, GatewayUsage, SecretValue, SecretValueError, Traffic};
pub use forkd_store::private_directory;
pub use forkd_types::Accelerator;
pub use forkd_types::AtEnd;
pub use forkd_vmm::{CgroupLimits, GuestRam, KeptOutput, PausePlan, Vm, VmmError};
pub use host::{ProbeVerdict, VmmMemory, probe_kvm};
pub use operation::{Operation, OperationKind, OperationState, Progress};
pub use sandboxes::{
    Limits, OwnerLimits, PortStream, PortToken, SandboxLimits, StandbyKind, StandbyUsage,
};
pub use snapshots::{
    Exported, HubEntry, HubListing, HubSnapshot, ImportRequest, Pushed, Signer, Trust, TrustedKey,
};
