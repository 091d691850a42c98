//! The pause window as types: what may be done to a paused VM, and the promise that it resumes.
//!
//! ```text
//! Vm --prepare_pause--> PreparedPause --pause--> PausedVm --resume--> Resumed
//!                            |                       |
//!                  drop: nothing happens     drop: resume
//! ```
//!
//! All commands of the window are loaded on monitors of their own before it opens; inside it each
//! costs the sending of one byte and the reading of one reply.
//!
//! While the VMM owes a reply nothing more is sent, not even `cont`: it might be executed before
//! the `stop` that was not answered. [`Vm::settle`] does the rest when the VMM answers again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkd_types::GuestStopped;
use qapi::qmp;

use crate::qemu::Vm;
use crate::{DiskOverlay, VmmError};

/// What will be done while the VM is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausePlan {
    /// Where the device state goes. The VMM writes it: it should be on tmpfs.
    pub device_state: PathBuf,
    /// The overlay that takes the guest's writes from then on; see [`Vm::add_overlay`]. None for a
    /// VM without disk.
    pub overlay: Option<DiskOverlay>,
}

/// A VM that runs, with the commands of the pause window loaded. They stay so when it is dropped.
#[derive(Debug)]
pub struct PreparedPause<'a> {
    vm: &'a mut Vm,
    overlay: Option<DiskOverlay>,
}

/// A VM whose vCPUs do not run. Dropping it lets them run again, unless the VMM is silent.
#[derive(Debug)]
pub struct PausedVm<'a> {
    window: Window<'a>,
    pause_requested_at: Instant,
    resumed: bool,
}

/// A VM runs again.
#[derive(Debug, Clone, Copy)]
pub struct Resumed {
    /// From the pause request to the confirmed resume.
    pub pause: Duration,
    /// Between the VMM's own STOP and RESUME events.
    pub held_by_vmm: Option<Duration>,
}

/// Access to the VM in the pause window.
#[derive(Debug)]
struct Window<'a> {
    vm: &'a mut Vm,
    overlay: Option<DiskOverlay>,
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // A window that closed in order has used up all of them.
        if let Err(error) = self.vm.unload()
            && !self.vm.process.has_ended()
        {
            tracing::warn!(%error, "a monitor did not take back a command");
        }
    }
}

impl Vm {
    /// Loads the commands of the pause window, so that the next [`Vm::prepare_pause`] with the same
    /// plan has nothing to do. They stay loaded until then. The guest runs on.
    ///
    /// # Errors
    /// When the VMM is gone, or still silent.
    pub fn load_pause(&mut self, plan: PausePlan) -> Result<(), VmmError> {
        self.settle(self.spec().deadlines.reply)?;
        if self.loaded.as_ref() == Some(&plan) {
            return Ok(());
        }
        let loaded = self.unload().and_then(|()| self.load_commands(&plan));
        loaded.map_err(|error| self.process.explain("while its pause was prepared", error))?;
        self.loaded = Some(plan);
        Ok(())
    }

    /// Gets ready to pause. The guest runs on.
    ///
    /// # Errors
    /// When the VMM is gone, or still silent.
    pub fn prepare_pause(&mut self, plan: PausePlan) -> Result<PreparedPause<'_>, VmmError> {
        let overlay = plan.overlay.clone();
        self.load_pause(plan)?;
        Ok(PreparedPause { vm: self, overlay })
    }

    fn load_commands(&mut self, plan: &PausePlan) -> Result<(), VmmError> {
        let top = self.top_overlay().map(|overlay| overlay.node.clone());
        let filename = plan.device_state.to_string_lossy().into_owned();
        let monitors = &mut self.monitors;
        monitors.pause.load(&qmp::stop {})?;
        // `live` would make QEMU give up its disks as after a migration, and `cont` open them
        // again: 0.85 ms for one overlay, 18 ms for a chain of 80.
        monitors.save.load(&qmp::xen_save_devices_state { live: Some(false), filename })?;
        if let (Some(node), Some(overlay)) = (top, &plan.overlay) {
            let overlay = overlay.node.clone();
            monitors
                .freeze
                .load(&qmp::blockdev_snapshot(qmp::BlockdevSnapshot { node, overlay }))?;
        }
        monitors.resume.load(&qmp::cont {})
    }

    /// Takes back what is loaded, unless the VMM is silent: then [`Vm::settle`] does it.
    pub(crate) fn unload(&mut self) -> Result<(), VmmError> {
        self.loaded = None;
        if self.owes_reply() {
            return Ok(());
        }
        let deadline = self.spec().deadlines.reply;
        let monitors = &mut self.monitors;
        for monitor in
            [&mut monitors.pause, &mut monitors.save, &mut monitors.freeze, &mut monitors.resume]
        {
            monitor.unload(deadline)?;
        }
        Ok(())
    }
}

impl<'a> PreparedPause<'a> {
    /// Stops the vCPUs and drains the disks. The pause window opens.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer; the VM is told to run again.
    pub fn pause(self) -> Result<PausedVm<'a>, VmmError> {
        let window = Window { vm: self.vm, overlay: self.overlay };
        let paused = PausedVm { window, pause_requested_at: Instant::now(), resumed: false };
        // From here on an early return drops `paused`, which resumes.
        let vm = &mut *paused.window.vm;
        vm.doubts.stopped = true;
        let stopped = vm.monitors.pause.fire::<qmp::stop>(vm.spec().deadlines.pause_reply);
        stopped.map_err(|error| vm.process.explain("while it paused", error))?;
        Ok(paused)
    }
}

impl GuestStopped for PausedVm<'_> {}

impl PausedVm<'_> {
    /// Writes everything that is not RAM to the planned file.
    ///
    /// # Errors
    /// When the VMM refuses (no space for the file) or does not answer.
    pub fn save_device_state(&mut self) -> Result<(), VmmError> {
        let vm = &mut *self.window.vm;
        let deadline = vm.spec().deadlines.pause_reply;
        let saved = vm.monitors.save.fire::<qmp::xen_save_devices_state>(deadline);
        saved.map(drop).map_err(|error| vm.process.explain("while it saved device state", error))
    }

    /// Puts the planned overlay on top of the disk; the one below never changes again. Does nothing
    /// for a VM without disk.
    ///
    /// # Errors
    /// When the VMM refuses: the disk is as before then. When it does not answer: which overlay is
    /// on top is known when it is settled.
    pub fn freeze_disk(&mut self) -> Result<(), VmmError> {
        let Some(overlay) = self.window.overlay.take() else { return Ok(()) };
        let vm = &mut *self.window.vm;
        let deadline = vm.spec().deadlines.pause_reply;
        let frozen = vm.monitors.freeze.fire::<qmp::blockdev_snapshot>(deadline);
        match frozen {
            Ok(_) => {
                vm.overlay_is_on_top(overlay);
                Ok(())
            }
            Err(error) => {
                if vm.owes_reply() {
                    vm.doubts.freezing = Some(overlay);
                }
                Err(vm.process.explain("while it froze the disk", error))
            }
        }
    }

    /// Ends the VMM without letting the vCPUs run again: its RAM file and its disk stay as they
    /// are. For a VM that becomes a template.
    pub fn end(mut self) {
        self.resumed = true;
        self.window.vm.process.kill();
    }

    /// Lets the vCPUs run; the pause window closes.
    ///
    /// # Errors
    /// When the VMM refuses or does not answer.
    pub fn resume(mut self) -> Result<Resumed, VmmError> {
        // Once fired, the command is not sent again by `drop`, whatever the reply: `cont` is in
        // QEMU's hands.
        self.resumed = true;
        let vm = &mut *self.window.vm;
        let resumed = vm.monitors.resume.fire::<qmp::cont>(vm.spec().deadlines.pause_reply);
        let pause = self.pause_requested_at.elapsed();
        resumed.map_err(|error| vm.process.explain("while it resumed", error))?;
        vm.doubts.stopped = false;
        let transitions = vm.monitors.resume.transitions();
        let held_us = transitions.resumed_at_us.zip(transitions.stopped_at_us);
        let held_by_vmm = held_us
            .and_then(|(resumed, stopped)| resumed.checked_sub(stopped))
            .map(Duration::from_micros);
        Ok(Resumed { pause, held_by_vmm })
    }
}

impl Drop for PausedVm<'_> {
    fn drop(&mut self) {
        if self.resumed {
            return;
        }
        let vm = &mut *self.window.vm;
        if vm.owes_reply() {
            return;
        }
        let resumed = vm.monitors.resume.fire::<qmp::cont>(vm.spec().deadlines.pause_reply);
        match resumed {
            Ok(_) => vm.doubts.stopped = false,
            Err(_) if vm.process.has_ended() => {}
            Err(error) => tracing::error!(%error, "a paused VM could not be resumed"),
        }
    }
}
