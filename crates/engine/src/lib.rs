//! The product's logic: templates, sandboxes, branches.
//!
//! [`Engine`] is the facade. Behind it one task owns each VM ([`sandbox`]); requests that touch
//! the VM queue there, requests to the guest agent go past it. What exists is in the store's
//! registry, and in memory only what lives.
//!
//! Guarantees: a sandbox is handed out only after its guest agent confirmed an identity of its
//! own; a branch that fails leaves its source running and no usable snapshot; nothing that a guest
//! sends is believed without a bound.
//!
//! Does not do: HTTP, command lines, SQL, QMP.

mod accelerator;
mod admission;
mod branch;
mod catalog;
mod collect;
mod compact;
mod config;
mod confine;
mod control;
mod domain;
mod engine;
mod error;
mod events;
mod files;
pub mod guest;
pub mod host;
mod hot;
mod identity;
mod images;
mod operation;
mod processes;
mod reconcile;
mod sandbox;
mod template;
mod usage;
mod view;
mod vmm_memory;

pub use accelerator::{ProbeVerdict, probe_kvm};
pub use admission::Limits;
pub use branch::{BranchProbe, ProbedBranch};
pub use config::{AcceleratorChoice, EngineConfig, UnknownAccelerator};
pub use domain::{
    AtShutDown, Branch, BranchReport, BranchRequest, DeletePolicy, ImageInfo, NoProgress,
    ProgressSink, Sandbox, SandboxOptions, Snapshot, TemplateRequest, Wait,
};
pub use engine::Engine;
pub use error::EngineError;
pub use events::{Change, EventReader, Next, OperationChange, SandboxChange, SnapshotChange};
pub use forkd_capture::HostFeatures;
pub use forkd_vmm::{Accelerator, GuestRam, VmmError};
pub use operation::{Begun, Operation, OperationKind, OperationState, Progress};
pub use usage::Usage;
pub use vmm_memory::VmmMemory;
