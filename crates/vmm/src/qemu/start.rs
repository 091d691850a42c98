//! Starting a VMM: its files are there, its process runs, its monitors answer.

use std::fs::File;
use std::path::Path;

use forkd_types::limit;

use super::jail::Names;
use super::process::{self, Process};
use super::vm::{Monitors, QemuVm};
use crate::{GuestRam, RamBacking, ShimClient, Start, VmSpec, VmmError, VmmTools};

impl QemuVm {
    /// Starts a VMM and waits until it takes commands: about 20 ms.
    ///
    /// # Errors
    /// When a file is missing, the program cannot be started, or it exits or stays silent.
    pub fn start(spec: VmSpec, tools: &VmmTools) -> Result<Self, VmmError> {
        require_files(&spec, tools)?;
        if matches!(spec.ram, RamBacking::Layers { .. }) {
            create_placeholder(spec.ram.path(), spec.memory.get())?;
        }
        let mut process = Process::start(&spec, tools)?;
        let connected =
            Monitors::connect(&spec.directory, limit::VMM_START_DEADLINE).and_then(|monitors| {
                let socket = process::shim_socket(&spec.directory);
                let shim = ShimClient::connect(&socket, spec.deadlines.reply)?;
                let ram = GuestRam::find(process.pid(), &Names::of(&spec).ram(), spec.memory)?;
                Ok((monitors, shim, ram))
            });
        let (monitors, shim, ram) =
            connected.map_err(|error| process.explain("while it started", error))?;
        let mut vm = Self::new(process, monitors, shim, ram, spec, tools.launcher.clone());
        if vm.spec.start == Start::Load {
            let found = vm.find_vcpus();
            found.map_err(|error| vm.process.explain("while it started", error))?;
        }
        Ok(vm)
    }
}

fn require_files(spec: &VmSpec, tools: &VmmTools) -> Result<(), VmmError> {
    let mut needed = vec![("the VMM's preload library", tools.shim.clone())];
    if spec.start == Start::Boot {
        needed.push(("the guest kernel", spec.boot.kernel.clone()));
        needed.push(("the initramfs", spec.boot.initramfs.clone()));
    }
    if let Some(disk) = &spec.disk {
        needed.push(("the root disk's base image", disk.base.clone()));
        let overlays = disk.overlays.iter();
        needed.extend(overlays.map(|overlay| ("the disk overlay", overlay.path.clone())));
    }
    match needed.into_iter().find(|(_, path)| !path.exists()) {
        Some((what, path)) => Err(VmmError::MissingFile { what, path }),
        None => Ok(()),
    }
}

/// An empty file of the right size: QEMU maps it, and the name marks the range.
fn create_placeholder(path: &Path, bytes: u64) -> Result<(), VmmError> {
    File::create(path)
        .and_then(|file| file.set_len(bytes))
        .map_err(|source| VmmError::file("create", path, source))
}
