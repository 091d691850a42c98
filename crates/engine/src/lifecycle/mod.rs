//! What happens to sandboxes: they start, run their requests, are paused, rolled back and removed,
//! and are taken over from an earlier daemon.
//!
//! ```text
//! template   an image becomes a snapshot        bring_up   a snapshot becomes a machine
//! start      a machine becomes a sandbox        task       owns the machine: one request at a time
//! control    pause, resume, rollback            adopt      a machine of an earlier daemon
//! reconcile  what is done with such at start    standby    VMMs that were started ahead of need
//! network    joins machines to the gateway
//! ```
//!
//! ```text
//! Engine --request--> SandboxTask (owns the Machine: VM, memory, disk)
//!    \---request----> GuestAgent (shared; never touches the VM)
//! ```

mod adopt;
mod bring_up;
mod control;
mod network;
mod reconcile;
mod standby;
mod start;
mod state;
mod task;
mod template;
mod trust;

pub(crate) use reconcile::Inherited;
pub(crate) use state::Lifecycle;
