//! After a VMM was silent: finding out what became of the commands that it was given.
//!
//! A command whose reply did not come in time may still be executed, later, and commands of
//! different monitors in any order. So nothing is sent after it until the replies that are owed
//! have come. Then it is known which disk overlay takes the writes, and the guest is made to run.

use std::time::Duration;

use qapi::qmp;

use super::Vm;
use crate::{DiskOverlay, VmmError};

/// What is not known about a VM.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// The vCPUs were told to stop, and have not confirmed that they run again.
    pub(crate) stopped: bool,
    /// The overlay that the disk was to be frozen under, while the reply is owed.
    pub(crate) freezing: Option<DiskOverlay>,
    /// Overlays that are not needed and that QEMU may have open.
    strays: Vec<DiskOverlay>,
}

/// The block nodes of an overlay, in the order in which they can be removed.
pub(super) fn nodes_of(overlay: &DiskOverlay) -> [String; 2] {
    [overlay.node.clone(), format!("{}-file", overlay.node)]
}

impl Vm {
    /// Whether all commands were answered and the vCPUs run, as far as is known.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.doubts.stopped && self.doubts.strays.is_empty() && !self.owes_reply()
    }

    pub(crate) fn owes_reply(&self) -> bool {
        self.monitors.all().iter().any(|monitor| monitor.owes_reply())
    }

    /// Waits for the replies that a silent VMM owes, and makes the guest run. Does nothing where
    /// nothing is owed.
    ///
    /// # Errors
    /// When a reply does not come within `deadline`: it is still owed then. When the VMM refuses to
    /// run the guest.
    pub fn settle(&mut self, deadline: Duration) -> Result<(), VmmError> {
        if self.is_settled() {
            return Ok(());
        }
        let settled = self.try_settle(deadline);
        settled.map_err(|error| self.process.explain("after it was silent", error))
    }

    fn try_settle(&mut self, deadline: Duration) -> Result<(), VmmError> {
        let frozen = self.monitors.freeze.settle(deadline)?;
        if let Some(overlay) = self.doubts.freezing.take()
            && frozen == Some(true)
        {
            self.overlay_is_on_top(overlay);
        }
        self.loaded = None;
        for monitor in self.monitors.all_mut() {
            monitor.settle(deadline)?;
            monitor.unload(deadline)?;
        }
        if self.doubts.stopped {
            let general = &mut self.monitors.general;
            if !general.execute(&qmp::query_status {}, deadline)?.running {
                general.execute(&qmp::cont {}, deadline)?;
            }
            self.doubts.stopped = false;
        }
        while let Some(overlay) = self.doubts.strays.pop() {
            self.drop_overlay(&overlay);
            self.monitors.general.settle(deadline)?;
        }
        Ok(())
    }

    /// Forgets an overlay of which it is not known whether QEMU has it open: at once, or when the
    /// VMM answers again.
    pub(super) fn drop_overlay(&mut self, overlay: &DiskOverlay) {
        for node_name in nodes_of(overlay) {
            if self.owes_reply() {
                self.doubts.strays.push(overlay.clone());
                return;
            }
            let command = qmp::blockdev_del { node_name };
            let removed = self.monitors.general.execute(&command, self.spec.deadlines.reply);
            if let Err(error) = removed {
                tracing::debug!(node = %overlay.node, %error, "a disk overlay was not open");
            }
        }
    }
}

impl super::Monitors {
    fn all(&self) -> [&super::Monitor; super::Role::COUNT] {
        [&self.general, &self.pause, &self.save, &self.freeze, &self.resume]
    }

    fn all_mut(&mut self) -> [&mut super::Monitor; super::Role::COUNT] {
        [&mut self.general, &mut self.pause, &mut self.save, &mut self.freeze, &mut self.resume]
    }
}
