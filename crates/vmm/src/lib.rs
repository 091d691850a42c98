//! Control of one virtual machine monitor per VM: start, load, pause, stop. Blocking calls with
//! deadlines, meant for a thread of the caller's.
//!
//! [`Driver`] and [`Vm`] are what callers see; [`qemu`] implements them, and so does `fake`, a
//! scripted VMM for tests of the callers.
//!
//! Guarantees: every wait ends; an error names the VMM, what was asked and what came back; a VM
//! that was stopped through [`PreparedPause`] runs again when what came of it is gone, whatever
//! happened in between; a dropped [`Vm`] leaves no process.
//!
//! Does not do: decide what a branch is, know snapshots, talk to the guest agent, keep files.

mod cgroup;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guest_ram;
mod output;
mod pause_window;
pub mod qemu;
mod shim_client;
mod spec;
mod vm;
mod window_commands;

pub use cgroup::{
    Cgroup, CgroupLimits, Cgroups, CgroupsUnavailable, Controller, VmmCgroup, sweep_cgroups,
    try_cgroups,
};
pub use error::VmmError;
pub use guest_ram::GuestRam;
pub use output::{KeptOutput, console_output};
pub use pause_window::{FrozenVm, PreparedPause, Resumed, SavedVm, StoppedVm};
pub use shim_client::{MappedRun, ShimClient};
pub use spec::{
    Abilities, BootSource, Confinement, Disk, DiskOverlay, Jail, OwnUser, RamBacking, Start,
    VmSpec, VmmTools, is_confined_disk,
};
pub use vm::{Driver, Greeting, RunState, Vm};
pub use window_commands::{PausePlan, WindowAccess, WindowCommands};
