//! Sandboxes, as far as the rest of the engine sees them without touching a VM.
//!
//! ```text
//! state      all of them, their records and directories    admission  how many there may be
//! handle     one of them: what is known, who uses it       lease      when its time is over
//! queue      which requests wait, pure                     request    what its task is asked for
//! machine    what its task owns: VM, memory, disk          record     what a later daemon needs
//! port_stream  a connection to a port, whose traffic is use
//! port_tokens  tokens that open one port
//! standby    VMMs that wait for a sandbox                  demand     which are worth it, pure
//! ```
//!
//! Guarantees: a sandbox's state is written in one place, which checks the table of hops; requests
//! that touch a VM wait in one queue and are done in order.
//!
//! Does not do: start, branch or end a VM; that is the business of `lifecycle` and `branch`.

mod admission;
mod demand;
mod handle;
mod lease;
mod machine;
mod port_stream;
mod port_tokens;
mod queue;
mod record;
mod request;
mod standby;
mod state;

pub(crate) use admission::{Admission, BranchPlace, Place};
pub use admission::{Limits, OwnerLimits, SandboxLimits};
pub(crate) use demand::{Demand, Origin, Shape, Step, Waiting};
pub(crate) use handle::{InUse, SandboxHandle};
pub(crate) use lease::UseGuard;
pub(crate) use machine::{Machine, Protection, StandbyOverlay, WatchedMemory};
pub use port_stream::PortStream;
pub use port_tokens::PortToken;
pub(crate) use port_tokens::{PortTokens, TooManyTokens, permits};
pub(crate) use queue::RequestKind;
pub(crate) use record::{DiskRecord, MachineRecord, listed, recorded_cgroup};
pub(crate) use request::{BranchOrder, Request};
pub(crate) use standby::{Sibling, Standby, StandbyVmm};
pub use standby::{StandbyKind, StandbyUsage};
pub(crate) use state::{ReservedId, Sandboxes, remove_run_directory};
