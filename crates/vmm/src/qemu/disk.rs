//! Overlays of a running VM's disk: opened, named, closed.

use std::path::PathBuf;

use qapi::qmp;

use super::args;
use super::jail::{self, Names};
use super::vm::QemuVm;
use crate::{DiskOverlay, VmmError};

impl QemuVm {
    /// Opens a blank overlay, on top of nothing.
    pub(super) fn open_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError> {
        let overlay = DiskOverlay { path, node: self.next_node() };
        let refused = |error: serde_json::Error| VmmError::Refused {
            command: "blockdev-add",
            description: error.to_string(),
        };
        if let Some(jail) = &self.spec.confinement.jail {
            jail::give_overlay(&overlay.path, jail)?;
        }
        let seen = Names::of(&self.spec).overlay(&overlay);
        for command in args::add_overlay(&seen, None).map_err(refused)? {
            let added = self.monitors.general.execute(&command, self.spec.deadlines.reply);
            if let Err(error) = added {
                self.drop_overlay(&overlay);
                return Err(self.process.explain("while a disk was added", error));
            }
        }
        Ok(overlay)
    }

    /// A name that no block node of this VM has had.
    pub(super) fn next_node(&mut self) -> String {
        let node = args::overlay_node(self.overlays_made);
        self.overlays_made += 1;
        node
    }

    /// Closes an overlay that is not in use.
    pub(super) fn close_overlay(&mut self, overlay: &DiskOverlay) -> Result<(), VmmError> {
        for node in args::nodes_of(overlay) {
            let command = qmp::blockdev_del { node_name: node };
            self.monitors.general.execute(&command, self.spec.deadlines.reply)?;
        }
        self.take_overlay(overlay);
        Ok(())
    }

    fn take_overlay(&self, overlay: &DiskOverlay) {
        if let Some(jail) = &self.spec.confinement.jail {
            jail::take_overlay(&overlay.path, jail);
        }
    }

    /// Forgets an overlay of which it is not known whether QEMU has it open: at once, or when the
    /// VMM answers again.
    pub(super) fn drop_overlay(&mut self, overlay: &DiskOverlay) {
        for node_name in args::nodes_of(overlay) {
            if self.owes_reply() {
                self.unconfirmed.strays.push(overlay.clone());
                return;
            }
            let command = qmp::blockdev_del { node_name };
            let removed = self.monitors.general.execute(&command, self.spec.deadlines.reply);
            if let Err(error) = removed {
                tracing::debug!(node = %overlay.node, %error, "a disk overlay was not open");
            }
        }
        self.take_overlay(overlay);
    }
}
