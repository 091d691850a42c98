//! QEMU, unpatched, on its `microvm` machine.
//!
//! [`Vm`] owns the process and its monitors. A child is started with [`Start::Load`], gets its
//! memory mapped and its device state loaded by [`Vm::load`], and runs from [`Vm::resume`] on.

mod adopt;
mod args;
mod commands;
mod flatten;
mod monitor;
mod process;
mod settle;
mod version;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_sys::uffd::Userfaultfd;
use forkd_types::{ByteCount, limit};
use qapi::qmp;
use rustix::process::Pid;

pub use args::cpu_model;
pub use commands::missing_commands;
pub(crate) use monitor::{Monitor, Role};
pub use process::processes_in;
pub use version::{default_program, version};

use self::process::Process;
use crate::{
    DiskOverlay, GuestRam, MappedRun, PausePlan, ShimClient, Start, VmSpec, VmmError, VmmTools,
};

/// The name under which QEMU gets the file with the device state.
const DEVICE_STATE_FD: &str = "device-state";
/// How often the load of device state, which takes 1 to 3 ms, is asked about.
const LOAD_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One VM: its VMM process and everything that controls it. Dropping it kills the process.
#[derive(Debug)]
pub struct Vm {
    pub(crate) process: Process,
    pub(crate) monitors: Monitors,
    shim: ShimClient,
    ram: GuestRam,
    spec: VmSpec,
    overlays_made: usize,
    pub(crate) doubts: settle::Doubts,
    /// What the monitors of the pause window are loaded for.
    pub(crate) loaded: Option<PausePlan>,
}

#[derive(Debug)]
pub(crate) struct Monitors {
    pub(crate) general: Monitor,
    pub(crate) pause: Monitor,
    pub(crate) save: Monitor,
    pub(crate) freeze: Monitor,
    pub(crate) resume: Monitor,
}

impl Monitors {
    fn connect(directory: &Path, deadline: Duration) -> Result<Self, VmmError> {
        let until = Instant::now() + deadline;
        let connect = |role: Role| {
            let left = until.saturating_duration_since(Instant::now());
            Monitor::connect(&directory.join(role.socket_name()), left)
        };
        Ok(Self {
            general: connect(Role::General)?,
            pause: connect(Role::Pause)?,
            save: connect(Role::SaveDeviceState)?,
            freeze: connect(Role::FreezeDisk)?,
            resume: connect(Role::Resume)?,
        })
    }
}

impl Vm {
    /// Starts a VMM and waits until it takes commands: about 20 ms. With [`Start::Boot`] the guest
    /// boots from then on; with [`Start::Load`] nothing runs.
    ///
    /// # Errors
    /// When a file is missing, the program cannot be started, or it ends or stays silent.
    pub fn start(spec: VmSpec, tools: &VmmTools) -> Result<Self, VmmError> {
        require_files(&spec, tools)?;
        if matches!(spec.ram, crate::RamBacking::Layers { .. }) {
            create_placeholder(spec.ram.path(), spec.memory.get())?;
        }
        let mut process = Process::start(&spec, tools)?;
        let connected =
            Monitors::connect(&spec.directory, limit::VMM_START_DEADLINE).and_then(|monitors| {
                let socket = process::shim_socket(&spec.directory);
                let shim = ShimClient::connect(&socket, spec.deadlines.reply)?;
                let ram = GuestRam::find(process.pid(), spec.ram.path(), spec.memory)?;
                Ok((monitors, shim, ram))
            });
        let (monitors, shim, ram) =
            connected.map_err(|error| process.explain("while it started", error))?;
        let overlays_made = spec.disk.as_ref().map_or(0, |disk| disk.overlays.len());
        let doubts = settle::Doubts::default();
        Ok(Self { process, monitors, shim, ram, spec, overlays_made, doubts, loaded: None })
    }

    /// Gives a VM started with [`Start::Load`] its memory and device state. It does not run yet.
    ///
    /// # Errors
    /// When a layer cannot be mapped, or QEMU refuses the device state (another version, another
    /// device list). The VM is of no use then.
    pub fn load(&mut self, runs: &[MappedRun<'_>], device_state: &File) -> Result<(), VmmError> {
        let loaded = self.try_load(runs, device_state);
        loaded.map_err(|error| self.process.explain("while it loaded device state", error))
    }

    fn try_load(&mut self, runs: &[MappedRun<'_>], device_state: &File) -> Result<(), VmmError> {
        debug_assert_eq!(self.spec.start, Start::Load);
        self.shim.map(self.ram, runs)?;
        let deadline = self.spec.deadlines.reply;
        let monitor = &mut self.monitors.general;
        let name = qmp::getfd { fdname: DEVICE_STATE_FD.to_owned() };
        monitor.execute_with_fd(&name, device_state.as_fd(), deadline)?;
        let incoming = qmp::migrate_incoming {
            channels: None,
            exit_on_error: None,
            uri: Some(format!("fd:{DEVICE_STATE_FD}")),
        };
        monitor.execute(&incoming, deadline)?;
        let until = Instant::now() + deadline;
        loop {
            let state = monitor.execute(&qmp::query_status {}, deadline)?;
            if state.status != qmp::RunState::inmigrate {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(VmmError::Silent { command: "migrate-incoming", deadline });
            }
            std::thread::sleep(LOAD_POLL_INTERVAL);
        }
    }

    /// Lets the guest run.
    ///
    /// # Errors
    /// When QEMU refuses or does not answer.
    pub fn resume(&mut self) -> Result<(), VmmError> {
        let resumed = self.monitors.general.execute(&qmp::cont {}, self.spec.deadlines.reply);
        resumed.map(drop).map_err(|error| self.process.explain("while it resumed", error))
    }

    /// Stops the vCPUs until [`Self::resume`].
    ///
    /// # Errors
    /// When QEMU refuses or does not answer.
    pub fn hold(&mut self) -> Result<(), VmmError> {
        let held = self.monitors.general.execute(&qmp::stop {}, self.spec.deadlines.reply);
        held.map(drop).map_err(|error| self.process.explain("while it was paused", error))
    }

    /// Whether the vCPUs run, as QEMU says.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn is_running(&mut self) -> Result<bool, VmmError> {
        let state = self.monitors.general.execute(&qmp::query_status {}, self.spec.deadlines.reply);
        state
            .map(|state| state.running)
            .map_err(|error| self.process.explain("while asked for its state", error))
    }

    /// Makes a new overlay known to the VM, for [`crate::PausePlan::overlay`]. The guest runs on.
    ///
    /// # Errors
    /// When QEMU cannot open the file.
    pub fn add_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError> {
        let overlay = DiskOverlay { path, node: self.next_node() };
        let refused = |error: serde_json::Error| VmmError::Refused {
            command: "blockdev-add",
            description: error.to_string(),
        };
        for command in args::add_overlay(&overlay, None).map_err(refused)? {
            let added = self.monitors.general.execute(&command, self.spec.deadlines.reply);
            if let Err(error) = added {
                self.drop_overlay(&overlay);
                return Err(self.process.explain("while a disk was added", error));
            }
        }
        Ok(overlay)
    }

    /// A name that no block node of this VM has had.
    fn next_node(&mut self) -> String {
        let node = args::overlay_node(self.overlays_made);
        self.overlays_made += 1;
        node
    }

    /// Forgets an overlay that was added and is not in use.
    ///
    /// # Errors
    /// When QEMU refuses or does not answer.
    pub fn remove_overlay(&mut self, overlay: &DiskOverlay) -> Result<(), VmmError> {
        for node in settle::nodes_of(overlay) {
            let command = qmp::blockdev_del { node_name: node };
            self.monitors.general.execute(&command, self.spec.deadlines.reply)?;
        }
        Ok(())
    }

    /// The overlay that takes the guest's writes now.
    #[must_use]
    pub fn top_overlay(&self) -> Option<&DiskOverlay> {
        self.spec.disk.as_ref().and_then(crate::Disk::top)
    }

    pub(crate) fn overlay_is_on_top(&mut self, overlay: DiskOverlay) {
        if let Some(disk) = &mut self.spec.disk {
            disk.overlays.push(overlay);
        }
    }

    /// Where guest RAM is.
    #[must_use]
    pub fn ram(&self) -> GuestRam {
        self.ram
    }

    /// Creates a userfaultfd over the VMM's address space.
    ///
    /// # Errors
    /// When the host does not permit it, or lacks write protection of shared memory.
    pub fn userfaultfd(&mut self) -> Result<Userfaultfd, VmmError> {
        self.shim
            .userfaultfd()
            .map_err(|error| self.process.explain("while its memory was made ready", error))
    }

    /// The VMM's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Becomes readable when the VMM ends.
    #[must_use]
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.process.exit_fd()
    }

    /// Whether the VMM has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// The end of the VMM as an error, if it has ended or ends at once.
    pub fn end(&mut self, during: &str) -> Option<VmmError> {
        self.process.end(during)
    }

    /// The memory limit that the kernel has ended the VMM for, if so.
    #[must_use]
    pub fn memory_limit_reached(&self) -> Option<ByteCount> {
        self.process.limit_reached()
    }

    /// How the VMM ended and what it wrote last.
    pub fn last_words(&mut self) -> String {
        self.process.last_words()
    }

    /// What the VM was started from.
    #[must_use]
    pub fn spec(&self) -> &VmSpec {
        &self.spec
    }

    /// Ends the VMM at once. The guest gets no notice: its disk is an overlay that is thrown away
    /// or frozen, so there is nothing to shut down cleanly.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

fn require_files(spec: &VmSpec, tools: &VmmTools) -> Result<(), VmmError> {
    let mut needed = vec![
        ("the VMM's preload library", tools.shim.clone()),
        ("the guest kernel", spec.boot.kernel.clone()),
        ("the initramfs", spec.boot.initramfs.clone()),
    ];
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
