//! The commands of the pause window: each is loaded on a monitor of its own before the window
//! opens; inside it each costs the sending of one byte and the reading of one reply. There are
//! three round trips: `stop`; device state and disk together; `cont`.

use std::time::Duration;

use qapi::qmp;

use super::QemuVm;
use super::jail::{self, Names};
use crate::window_commands::WindowCommands;
use crate::{PausePlan, VmmError};

impl QemuVm {
    pub(super) fn load_window(&mut self, plan: PausePlan) -> Result<(), VmmError> {
        self.resync_within(self.spec.deadlines.reply)?;
        if let Some(jail) = &self.spec.confinement.jail {
            // A branch that failed has removed it, and the commands may still be loaded.
            jail::make_device_state(&plan.device_state, jail, self.launcher.as_deref())?;
        }
        let named = self.name_below();
        named.map_err(|error| self.process.explain("while its disk was made ready", error))?;
        if self.loaded.as_ref() == Some(&plan) {
            return Ok(());
        }
        let loaded = self.unload_window().and_then(|()| self.load_commands(&plan));
        loaded.map_err(|error| self.process.explain("while its pause was prepared", error))?;
        self.loaded = Some(plan);
        Ok(())
    }

    fn load_commands(&mut self, plan: &PausePlan) -> Result<(), VmmError> {
        let top = self.spec.disk.as_ref().and_then(crate::Disk::top);
        let top = top.map(|overlay| overlay.node.clone());
        let seen = Names::of(&self.spec).device_state(&plan.device_state);
        let filename = seen.to_string_lossy().into_owned();
        let monitors = &mut self.monitors;
        for monitor in monitors.all_mut() {
            monitor.connect(self.spec.deadlines.reply)?;
        }
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

    /// Takes back what is loaded, unless the VMM is silent: then a resync does it.
    fn unload_window(&mut self) -> Result<(), VmmError> {
        self.loaded = None;
        if self.owes_reply() {
            return Ok(());
        }
        let deadline = self.spec.deadlines.reply;
        let monitors = &mut self.monitors;
        for monitor in
            [&mut monitors.pause, &mut monitors.save, &mut monitors.freeze, &mut monitors.resume]
        {
            monitor.unload(deadline)?;
        }
        Ok(())
    }
}

impl QemuVm {
    /// Asks for the device state and for the planned overlay on top of the disk, and waits for the
    /// device state.
    ///
    /// The disk need not wait for it: neither looks at what the other does, and the vCPUs stand
    /// still. So QEMU goes from one to the other while this process sleeps, and the window has one
    /// round trip less.
    fn save_and_ask_to_freeze(&mut self) -> Result<(), VmmError> {
        self.monitors.save.complete::<qmp::xen_save_devices_state>()?;
        self.ask_to_freeze()?;
        let deadline = self.spec.deadlines.pause_reply;
        self.monitors.save.reply::<qmp::xen_save_devices_state>(deadline).map(drop)
    }

    fn ask_to_freeze(&mut self) -> Result<(), VmmError> {
        let planned = self.loaded.as_mut().and_then(|plan| plan.overlay.take());
        let Some(overlay) = planned else { return Ok(()) };
        self.monitors.freeze.complete::<qmp::blockdev_snapshot>()?;
        self.unconfirmed.freezing = Some(overlay);
        Ok(())
    }

    /// Waits until the disk is frozen, if that was asked for.
    fn await_freeze(&mut self) -> Result<(), VmmError> {
        let Some(overlay) = self.unconfirmed.freezing.take() else { return Ok(()) };
        let deadline = self.spec.deadlines.pause_reply;
        match self.monitors.freeze.reply::<qmp::blockdev_snapshot>(deadline) {
            Ok(_) => {
                self.overlay_is_on_top(overlay);
                Ok(())
            }
            Err(error) => {
                if self.monitors.freeze.owes_reply() {
                    self.unconfirmed.freezing = Some(overlay);
                }
                Err(error)
            }
        }
    }
}

impl WindowCommands for QemuVm {
    fn stop(&mut self) -> Result<(), VmmError> {
        self.unconfirmed.stopped = true;
        let stopped = self.monitors.pause.fire::<qmp::stop>(self.spec.deadlines.pause_reply);
        stopped.map(drop).map_err(|error| self.process.explain("while it paused", error))
    }

    fn save_device_state(&mut self) -> Result<(), VmmError> {
        let saved = self.save_and_ask_to_freeze();
        saved.map_err(|error| self.process.explain("while it saved device state", error))
    }

    fn freeze_disk(&mut self) -> Result<(), VmmError> {
        let frozen = self.await_freeze();
        frozen.map_err(|error| self.process.explain("while it froze the disk", error))
    }

    fn resume(&mut self) -> Result<Option<Duration>, VmmError> {
        let resumed = self.monitors.resume.fire::<qmp::cont>(self.spec.deadlines.pause_reply);
        resumed.map_err(|error| self.process.explain("while it resumed", error))?;
        self.unconfirmed.stopped = false;
        let transitions = self.monitors.resume.transitions();
        let held_us = transitions.resumed_at_us.zip(transitions.stopped_at_us);
        let held_us = held_us.and_then(|(resumed, stopped)| resumed.checked_sub(stopped));
        Ok(held_us.map(Duration::from_micros))
    }

    fn resume_early(&mut self) {
        if !self.monitors.save.owes_reply()
            && let Err(error) = self.await_freeze()
        {
            tracing::debug!(%error, "a disk was not frozen in a window that was left early");
        }
        if self.owes_reply() {
            return;
        }
        match self.monitors.resume.fire::<qmp::cont>(self.spec.deadlines.pause_reply) {
            Ok(_) => self.unconfirmed.stopped = false,
            Err(_) if self.process.has_exited() => {}
            Err(error) => tracing::error!(%error, "a paused VM could not be resumed"),
        }
    }

    fn unload(&mut self) {
        // A window that closed in order has used up all of them.
        if let Err(error) = self.unload_window()
            && !self.process.has_exited()
        {
            tracing::warn!(%error, "a monitor did not take back a command");
        }
    }

    fn kill(&mut self) {
        self.process.kill();
    }
}
