//! QEMU, unpatched, on its `microvm` machine.
//!
//! [`Qemu`] starts and adopts [`QemuVm`]s. A child is started with [`crate::Start::Load`], gets its
//! memory mapped and its device state loaded, and runs from the resume on.

mod adopt;
mod args;
mod commands;
mod disk;
mod flatten;
mod freeze;
mod img;
mod jail;
mod launcher;
mod monitor;
mod process;
mod resync;
mod start;
mod version;
mod vm;
mod window;

use std::path::Path;

use rustix::process::Pid;

pub use args::{MACHINE, cpu_model, cpu_model_of};
pub use commands::missing_commands;
pub use img::{ConfinedImg, ImgDisks};
pub use launcher::with_launcher;
#[cfg(feature = "fuzzing")]
pub(crate) use monitor::Monitor;
pub use version::{default_program, emulates_in_parallel, version};
pub use vm::QemuVm;

use crate::{Driver, RunState, Vm, VmSpec, VmmError, VmmTools};

/// The driver of QEMU.
#[derive(Debug, Clone)]
pub struct Qemu {
    tools: VmmTools,
}

impl Qemu {
    /// Starts VMMs with these programs.
    #[must_use]
    pub const fn new(tools: VmmTools) -> Self {
        Self { tools }
    }
}

impl Driver for Qemu {
    fn start(&self, spec: VmSpec) -> Result<Box<dyn Vm>, VmmError> {
        Ok(Box::new(QemuVm::start(spec, &self.tools)?))
    }

    fn adopt(
        &self,
        spec: VmSpec,
        pid: Pid,
        ram_address: u64,
        state: RunState,
    ) -> Result<Box<dyn Vm>, VmmError> {
        Ok(Box::new(QemuVm::adopt(spec, pid, ram_address, state, self.tools.launcher.clone())?))
    }

    fn processes_in(&self, run_dir: &Path) -> Vec<Pid> {
        process::processes_in(run_dir)
    }
}
