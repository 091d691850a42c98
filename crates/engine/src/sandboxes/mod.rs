//! Sandboxes, as far as the rest of the engine sees them without touching a VM.
//!
//! ```text
//! state      all of them, their records and directories    admission  how many there may be
//! handle     one of them: what is known, who uses it       lease      when its time is over
//! queue      which requests wait, pure                     request    what its task is asked for
//! machine    what its task owns: VM, memory, disk          record     what a later daemon needs
//! ```
//!
//! Guarantees: a sandbox's state is written in one place, which checks the table of hops; requests
//! that touch a VM wait in one queue and are done in order.
//!
//! Does not do: start, branch or end a VM; that is the business of `lifecycle` and `branch`.

mod admission;
mod handle;
mod lease;
mod machine;
mod queue;
mod record;
mod request;
mod state;

pub(crate) use admission::{Admission, BranchPlace, Place};
pub use admission::{Limits, OwnerLimits};
pub(crate) use handle::{InUse, SandboxHandle};
pub(crate) use lease::UseGuard;
pub(crate) use machine::{Machine, Protection, StandbyOverlay, WatchedMemory};
pub(crate) use queue::RequestKind;
pub(crate) use record::{MachineRecord, recorded_limit};
pub(crate) use request::{BranchOrder, Request};
pub(crate) use state::{Sandboxes, remove_directory};
