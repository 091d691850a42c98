//! Control of one virtual machine monitor per VM: start, load, pause, stop. Blocking calls with
//! deadlines, meant for a thread of the caller's.
//!
//! Guarantees: every wait ends; an error names the VMM, what was asked and what came back; a VM
//! that was paused through [`Vm::prepare_pause`] runs again when its [`PausedVm`] is gone, whatever
//! happened in between; a dropped [`Vm`] leaves no process.
//!
//! Does not do: decide what a branch is, know snapshots, talk to the guest agent, keep files.

mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group;
mod guest_ram;
mod paused;
pub mod qemu;
mod shim_client;
mod spec;

pub use error::VmmError;
pub use group::{
    MemoryGroup, MemoryGroups, MemoryLimit, NoMemoryGroups, limit_was_reached, try_memory_limit,
};
pub use guest_ram::GuestRam;
pub use paused::{PausePlan, PausedVm, PreparedPause, Resumed};
pub use qemu::Vm;
pub use shim_client::{MappedRun, ShimClient};
pub use spec::{
    Accelerator, BootSource, Confinement, Disk, DiskOverlay, RamBacking, Start, VmSpec, VmmTools,
};
