//! The pause window as types: what may be done to a VM whose vCPUs stand still, in which order, and
//! the promise that it resumes.
//!
//! ```text
//! Vm --prepare_pause--> PreparedPause --stop--> StoppedVm --save_device_state--> SavedVm
//!                            |                      |                               |
//!                  drop: nothing happens            |                          freeze_disk
//!                                                   |                               v
//!                                                   |         Resumed <--resume-- FrozenVm
//!                                                   |                               |
//!                                                   +---------- drop: resume -------+
//! ```
//!
//! Each step consumes the type before it, so an order that would tear a snapshot does not compile.
//! The disk is frozen after the device state was saved, and only a [`FrozenVm`] is the proof that a
//! capture asks for before it closes the dirty set:
//!
//! ```compile_fail,E0599
//! # fn f(prepared: forkd_vmm::PreparedPause<'_>) -> Result<(), forkd_vmm::VmmError> {
//! prepared.stop()?.freeze_disk()?; // the device state is not saved
//! # Ok(()) }
//! ```
//! ```compile_fail,E0277
//! # fn close(proof: &impl forkd_types::GuestStopped) {}
//! # fn f(stopped: forkd_vmm::StoppedVm<'_>) {
//! close(&stopped); // saving may still write guest memory
//! # }
//! ```
//! ```
//! # fn close(proof: &impl forkd_types::GuestStopped) {}
//! # fn f(prepared: forkd_vmm::PreparedPause<'_>) -> Result<(), forkd_vmm::VmmError> {
//! let frozen = prepared.stop()?.save_device_state()?.freeze_disk()?;
//! close(&frozen);
//! frozen.resume()?;
//! # Ok(()) }
//! ```
//!
//! All commands of the window are loaded before it opens; inside it each costs as little as its
//! kind of VMM permits. While the VMM owes a reply nothing more is sent, not even the command to
//! resume: it might be executed before the stop that was not answered. [`Vm::resync`] does the rest
//! when the VMM answers again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkd_types::GuestStopped;

use crate::{DiskOverlay, Vm, VmmError};

/// What will be done while the VM is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausePlan {
    /// Where the device state goes. The VMM writes it: it should be on tmpfs.
    pub device_state: PathBuf,
    /// The overlay that takes the guest's writes from then on; see [`Vm::add_overlay`]. None for a
    /// VM without disk.
    pub overlay: Option<DiskOverlay>,
}

/// Proof that the types of the pause window ask. Nobody else can make one.
#[derive(Debug)]
pub struct WindowAccess(());

/// The commands of the pause window, loaded by [`Vm::load_pause`], each given at most once in a
/// window. An implementation need not know their order: the types do.
pub trait WindowCommands {
    /// Stops the vCPUs and drains the disks.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn stop(&mut self) -> Result<(), VmmError>;

    /// Writes everything that is not RAM to the planned file.
    ///
    /// # Errors
    /// When the VMM refuses (no space for the file) or does not answer.
    fn save_device_state(&mut self) -> Result<(), VmmError>;

    /// Puts the planned overlay on top of the disk; the one below never changes again. Does nothing
    /// where none is planned.
    ///
    /// # Errors
    /// When the VMM refuses: the disk is as before then. When it does not answer: which overlay is
    /// on top is known after [`Vm::resync`].
    fn freeze_disk(&mut self) -> Result<(), VmmError>;

    /// Lets the vCPUs run. Gives the time for which they stood still, as the VMM says.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    fn resume(&mut self) -> Result<Option<Duration>, VmmError>;

    /// The window was left early: lets the vCPUs run, unless the VMM owes a reply.
    fn resume_early(&mut self);

    /// Takes back what is loaded and was not used.
    fn unload(&mut self);

    /// Kills the VMM.
    fn kill(&mut self);
}

/// A VM that runs, with the commands of the pause window loaded. They stay so when it is dropped.
#[derive(Debug)]
pub struct PreparedPause<'a> {
    vm: &'a mut dyn Vm,
}

/// A VM whose vCPUs do not run. Dropping it lets them run again, unless the VMM is silent.
#[derive(Debug)]
pub struct StoppedVm<'a>(Window<'a>);

/// A stopped VM whose device state is written. Dropping it lets the vCPUs run again.
#[derive(Debug)]
pub struct SavedVm<'a>(Window<'a>);

/// A stopped VM whose device state is written and whose disk is frozen: nothing but a resume
/// changes its memory any more. Dropping it lets the vCPUs run again.
#[derive(Debug)]
pub struct FrozenVm<'a>(Window<'a>);

impl GuestStopped for FrozenVm<'_> {}

/// A VM runs again.
#[derive(Debug, Clone, Copy)]
pub struct Resumed {
    /// From the pause request to the confirmed resume.
    pub pause: Duration,
    /// Between the VMM's own word that it stopped and that it resumed.
    pub held_by_vmm: Option<Duration>,
}

impl dyn Vm + '_ {
    /// Gets ready to pause. The guest runs on.
    ///
    /// # Errors
    /// When the VMM is gone, or still silent.
    pub fn prepare_pause(&mut self, plan: PausePlan) -> Result<PreparedPause<'_>, VmmError> {
        self.load_pause(plan)?;
        Ok(PreparedPause { vm: self })
    }
}

impl<'a> PreparedPause<'a> {
    /// Stops the vCPUs and drains the disks. The pause window opens.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer; the VM is told to run again.
    pub fn stop(self) -> Result<StoppedVm<'a>, VmmError> {
        let requested_at = Instant::now();
        let mut window = Window { vm: self.vm, requested_at, resumed: false };
        // From here on an early return drops `window`, which resumes.
        window.commands().stop()?;
        Ok(StoppedVm(window))
    }
}

impl<'a> StoppedVm<'a> {
    /// Writes everything that is not RAM to the planned file.
    ///
    /// # Errors
    /// When the VMM refuses (no space for the file) or does not answer; the VM is told to run.
    pub fn save_device_state(mut self) -> Result<SavedVm<'a>, VmmError> {
        self.0.commands().save_device_state()?;
        Ok(SavedVm(self.0))
    }
}

impl<'a> SavedVm<'a> {
    /// Puts the planned overlay on top of the disk; the one below never changes again. A VM without
    /// disk has nothing to freeze.
    ///
    /// # Errors
    /// When the VMM refuses: the disk is as before then. When it does not answer: which overlay is
    /// on top is known after [`Vm::resync`].
    pub fn freeze_disk(mut self) -> Result<FrozenVm<'a>, VmmError> {
        self.0.commands().freeze_disk()?;
        Ok(FrozenVm(self.0))
    }

    /// Kills the VMM without letting the vCPUs run again: its RAM file and its disk stay as they
    /// are. For a VM that becomes a template.
    pub fn kill(mut self) {
        self.0.resumed = true;
        self.0.commands().kill();
    }
}

impl FrozenVm<'_> {
    /// Lets the vCPUs run; the pause window closes.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    pub fn resume(mut self) -> Result<Resumed, VmmError> {
        let window = &mut self.0;
        // Once given, the command is not given again by `drop`, whatever the reply: it is in the
        // VMM's hands.
        window.resumed = true;
        let resumed = window.commands().resume();
        let pause = window.requested_at.elapsed();
        Ok(Resumed { pause, held_by_vmm: resumed? })
    }
}

/// Access to the VM in the pause window, and the promise to leave it running.
#[derive(Debug)]
struct Window<'a> {
    vm: &'a mut dyn Vm,
    requested_at: Instant,
    resumed: bool,
}

impl Window<'_> {
    fn commands(&mut self) -> &mut dyn WindowCommands {
        self.vm.window(WindowAccess(()))
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let resumed = self.resumed;
        let commands = self.commands();
        if !resumed {
            commands.resume_early();
        }
        commands.unload();
    }
}
