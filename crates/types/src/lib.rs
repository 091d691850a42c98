//! The vocabulary of forkd: ids, sizes, states, phases and limits.
//!
//! Guarantees: every value of a type here is valid (an id has been parsed, a byte count of guest
//! memory is a multiple of the page size), and kinds that must not be mixed up do not convert into
//! each other silently.
//!
//! Does not do: I/O, clocks, async, unsafe. Everything else may depend on this crate.

mod at_end;
mod branch;
mod digest;
mod histogram;
mod id;
mod kind;
pub mod limit;
mod machine;
mod name;
pub mod network;
mod owner;
mod phases;
mod size;
mod start;
pub mod state;
mod stopped;
mod tag;
mod text;

pub use at_end::AtEnd;
pub use branch::{BranchMode, BranchPhase, UnknownMode};
pub use digest::{BadDigest, Digest};
pub use histogram::TimeHistogram;
pub use id::{IdError, LayerId, OperationId, OverlayId, ProcessId, SandboxId};
pub use kind::{
    Accelerator, CpuModel, EventType, FileKind, FlowOutcome, Isolation, OperationKind,
    StandbyStatus, UnknownCpuModel,
};
pub use machine::{MachineSize, MachineSizeError};
pub use name::Named;
pub use owner::{Owner, OwnerError};
pub use phases::{PhaseClock, PhaseTimes};
pub use size::{ByteCount, PAGE_BYTES, PageCount, PageIndex, PageRun, SizeError};
pub use start::StartPhase;
pub use state::{LifeCycle, OperationState, ProcessState, SandboxState, SnapshotStatus};
pub use stopped::GuestStopped;
pub use tag::{SnapshotTag, TagError, TagName};
