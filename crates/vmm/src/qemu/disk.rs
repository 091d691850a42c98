//! Overlays of a running VM's disk: opened, named, closed.

use std::path::PathBuf;

use qapi::qmp;

use super::args;
use super::jail::{self, Names};
use super::vm::QemuVm;
use crate::{DiskOverlay, VmmError};

/// A command that cannot be built.
fn refused(error: serde_json::Error) -> VmmError {
    VmmError::Refused { command: "blockdev-add", description: error.to_string() }
}

impl QemuVm {
    /// Opens a blank overlay, on top of nothing.
    pub(super) fn open_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError> {
        let overlay = DiskOverlay { path, node: self.next_node() };
        if let Some(jail) = &self.spec.confinement.jail {
            jail::give_overlay(&overlay.path, jail, self.launcher.as_deref())?;
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

    /// Opens the frozen overlays at `paths`, each over the one before, and puts the blank one over
    /// the last.
    pub(super) fn put_below(&mut self, paths: Vec<PathBuf>) -> Result<(), VmmError> {
        if paths.is_empty() {
            return Ok(());
        }
        let no_disk = || VmmError::Refused {
            command: "blockdev-reopen",
            description: "it has no blank overlay".to_owned(),
        };
        let disk = self.spec.disk.as_ref().filter(|disk| disk.overlays.len() == 1);
        let top = disk.and_then(|disk| disk.top()).ok_or_else(no_disk)?.clone();
        let mut overlays = Vec::with_capacity(paths.len() + 1);
        let mut below = args::BASE_NODE.to_owned();
        for path in paths {
            let overlay = DiskOverlay { path, node: self.next_node() };
            if let Some(jail) = &self.spec.confinement.jail {
                jail::give_frozen_overlay(&overlay.path, jail)?;
            }
            let seen = Names::of(&self.spec).overlay(&overlay);
            for command in args::add_frozen_overlay(&seen, &below).map_err(refused)? {
                self.monitors.general.execute(&command, self.spec.deadlines.reply)?;
            }
            below.clone_from(&overlay.node);
            self.closed.insert(overlay.node.clone());
            overlays.push(overlay);
        }
        let seen = Names::of(&self.spec).overlay(&top);
        let options = vec![args::overlay_options(&seen, &below).map_err(refused)?];
        let reopen = qmp::blockdev_reopen { options };
        self.monitors.general.execute(&reopen, self.spec.deadlines.reply)?;
        overlays.push(top);
        if let Some(disk) = &mut self.spec.disk {
            disk.overlays = overlays;
        }
        Ok(())
    }

    /// Writes into the header of the top overlay what is below it.
    ///
    /// QEMU gives a node the name of its file if that file names what is below, and otherwise a
    /// name that spells out all nodes below. `blockdev-snapshot` makes these names again for the
    /// whole chain, in the pause window: for each node one that is longer than the last.
    ///
    /// Only for a confined VMM: its names mean nothing elsewhere, so whoever moves a state
    /// directory, or reads an overlay without saying what is below, is not led to another file.
    pub(super) fn name_below(&mut self) -> Result<(), VmmError> {
        let Some(disk) = self.spec.disk.as_ref().filter(|_| self.spec.confinement.jail.is_some())
        else {
            return Ok(());
        };
        let names = Names::of(&self.spec);
        let (top, below, path) = match disk.overlays.as_slice() {
            [] => return Ok(()),
            [top] => (top, args::BASE_NODE, names.base(disk)),
            [.., below, top] => (top, below.node.as_str(), names.overlay(below).path),
        };
        let nodes = [top.node.clone(), below.to_owned()];
        if self.below_named.as_ref() == Some(&nodes) {
            return Ok(());
        }
        let name = qmp::change_backing_file {
            device: top.node.clone(),
            image_node_name: top.node.clone(),
            backing_file: path.to_string_lossy().into_owned(),
        };
        self.monitors.general.execute(&name, self.spec.deadlines.reply)?;
        self.below_named = Some(nodes);
        Ok(())
    }

    /// What the header of an overlay says that lies directly over the base image; nothing where
    /// [`Self::name_below`] says nothing.
    pub(super) fn name_of_base(&self) -> String {
        let disk = self.spec.disk.as_ref().filter(|_| self.spec.confinement.jail.is_some());
        let name = disk.map(|disk| Names::of(&self.spec).base(disk));
        name.unwrap_or_default().to_string_lossy().into_owned()
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
