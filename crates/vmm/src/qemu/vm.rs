//! One VM on QEMU: its state, and what the seam asks of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_launcher::Launcher;
use forkd_sys::pagemap;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::{Accelerator, ByteCount, limit};
use qapi::qmp;
use rustix::process::Pid;

use super::monitor::{Monitor, Role};
use super::process::Process;
use crate::window_commands::{WindowAccess, WindowCommands};
use crate::{
    DiskOverlay, Greeting, GuestRam, KeptOutput, MappedRun, PausePlan, ShimClient, Start, Vm,
    VmSpec, VmmError,
};

/// The name under which QEMU gets the file with the device state.
const DEVICE_STATE_FD: &str = "device-state";
/// How often the load of device state, which takes 1 to 3 ms, is asked about.
const LOAD_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// How often it is looked whether the VMM has read the port: the next thing that it does.
const PORT_POLL_INTERVAL: Duration = Duration::from_micros(20);
/// How often it is looked whether the guest has answered, which takes milliseconds.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One VM: its QEMU process and everything that controls it. Dropping it kills the process.
#[derive(Debug)]
pub struct QemuVm {
    pub(super) process: Process,
    pub(super) monitors: Monitors,
    pub(super) shim: ShimClient,
    pub(super) ram: GuestRam,
    pub(super) spec: VmSpec,
    pub(super) overlays_made: usize,
    pub(super) unconfirmed: Unconfirmed,
    /// What the monitors of the pause window are loaded for; without the overlay once the disk is
    /// frozen.
    pub(super) loaded: Option<PausePlan>,
    /// The nodes of overlays that the VMM is known not to have open for writing.
    pub(super) closed: BTreeSet<String>,
    /// Lends files to VMMs that have users of their own.
    pub(super) launcher: Option<Arc<Launcher>>,
    /// None of a VM that was taken over, whose vCPUs have run.
    pub(super) vcpu_threads: VcpuThreads,
    /// The top overlay whose header names what is below it, and what that is, as nodes.
    pub(super) below_named: Option<[String; 2]>,
}

/// What is not known about a VM because its VMM has not answered.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    /// The vCPUs were told to stop, and have not confirmed that they run again.
    pub(super) stopped: bool,
    /// The overlay that the disk was to be frozen under, while the reply is owed.
    pub(super) freezing: Option<DiskOverlay>,
    /// Overlays that are not needed and that QEMU may have open.
    pub(super) strays: Vec<DiskOverlay>,
}

#[derive(Debug)]
pub(super) struct Monitors {
    pub(super) general: Monitor,
    pub(super) pause: Monitor,
    pub(super) save: Monitor,
    pub(super) freeze: Monitor,
    pub(super) resume: Monitor,
}

impl Monitors {
    /// Those of the VM in this directory. Those of the pause window are connected when the first
    /// branch is prepared.
    pub(super) fn connect(directory: &Path, deadline: Duration) -> Result<Self, VmmError> {
        let monitor = |role: Role| Monitor::at(directory.join(role.socket_name()));
        let mut general = monitor(Role::General);
        general.connect(deadline)?;
        Ok(Self {
            general,
            pause: monitor(Role::Pause),
            save: monitor(Role::SaveDeviceState),
            freeze: monitor(Role::FreezeDisk),
            resume: monitor(Role::Resume),
        })
    }

    pub(super) fn all(&self) -> [&Monitor; Role::COUNT] {
        [&self.general, &self.pause, &self.save, &self.freeze, &self.resume]
    }

    pub(super) fn all_mut(&mut self) -> [&mut Monitor; Role::COUNT] {
        [&mut self.general, &mut self.pause, &mut self.save, &mut self.freeze, &mut self.resume]
    }
}

impl QemuVm {
    /// A VM whose process answers, with nothing unconfirmed and nothing loaded.
    pub(super) fn new(
        process: Process,
        monitors: Monitors,
        shim: ShimClient,
        ram: GuestRam,
        spec: VmSpec,
        launcher: Option<Arc<Launcher>>,
    ) -> Self {
        let overlays_made = spec.disk.as_ref().map_or(0, |disk| disk.overlays.len());
        // It has opened those below the top for reading.
        let frozen = spec.disk.as_ref().and_then(|disk| disk.overlays.split_last());
        let frozen = frozen.map(|(_, frozen)| frozen).unwrap_or_default().iter();
        let closed = frozen.map(|overlay| overlay.node.clone()).collect();
        let (unconfirmed, loaded) = (Unconfirmed::default(), None);
        Self {
            process,
            monitors,
            shim,
            ram,
            spec,
            overlays_made,
            unconfirmed,
            loaded,
            closed,
            launcher,
            vcpu_threads: VcpuThreads::default(),
            below_named: None,
        }
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

    /// Finds the threads of the vCPUs, as far as they must be known to hold them.
    pub(super) fn find_vcpus(&mut self) -> Result<(), VmmError> {
        let is_emulated = self.spec.accelerator == Accelerator::Tcg;
        // On KVM they are held where they enter it, and with one there is no first.
        if is_emulated || self.spec.vcpus > 1 {
            let deadline = self.spec.deadlines.reply;
            let vcpus = self.monitors.general.execute(&qmp::query_cpus_fast {}, deadline)?;
            self.vcpu_threads = VcpuThreads::of(&vcpus, is_emulated);
        }
        Ok(())
    }

    fn try_resume_when(&mut self, greeting: &Greeting<'_>) -> Result<bool, VmmError> {
        self.shim.hold_vcpus(self.vcpu_threads.emulated.clone())?;
        let resumed = self.monitors.general.execute(&qmp::cont {}, self.spec.deadlines.reply);
        let until = Instant::now() + limit::VCPUS_HELD_MAX;
        let mut in_time =
            resumed.is_ok() && comes_true(greeting.is_read, until, PORT_POLL_INTERVAL);
        if let (true, Some(first)) = (in_time, self.vcpu_threads.first) {
            in_time = self.shim.release_vcpu(first).is_ok()
                && comes_true(greeting.is_answered, until, ANSWER_POLL_INTERVAL);
        }
        // Whatever came of it: held vCPUs would not even end.
        let released = self.shim.release_vcpus();
        resumed?;
        Ok(in_time && released.is_ok())
    }

    pub(super) fn owes_reply(&self) -> bool {
        self.monitors.all().iter().any(|monitor| monitor.owes_reply())
    }

    pub(super) fn overlay_is_on_top(&mut self, overlay: DiskOverlay) {
        if let Some(disk) = &mut self.spec.disk {
            disk.overlays.push(overlay);
        }
    }

    fn try_load(&mut self, device_state: &File) -> Result<(), VmmError> {
        debug_assert_eq!(self.spec.start, Start::Load);
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
}

impl Vm for QemuVm {
    fn spec(&self) -> &VmSpec {
        &self.spec
    }

    fn pid(&self) -> Pid {
        self.process.pid()
    }

    fn ram(&self) -> GuestRam {
        self.ram
    }

    fn page_tables(&mut self) -> Result<File, VmmError> {
        let pid = self.process.pid();
        let jail = self.spec.confinement.jail.as_ref();
        match (&self.launcher, jail.and_then(|jail| jail.lent_to)) {
            (Some(launcher), Some(_)) => Ok(launcher.open_page_tables(pid)?),
            _ => {
                let failed = |source| {
                    let path = format!("/proc/{}/pagemap", pid.as_raw_nonzero());
                    VmmError::file("open", path, source)
                };
                pagemap::page_tables(pid).map_err(failed)
            }
        }
    }

    fn userfaultfd(&mut self) -> Result<Userfaultfd, VmmError> {
        let made = self.shim.userfaultfd();
        made.map_err(|error| self.process.explain("while its memory was made ready", error))
    }

    fn network_link(&mut self) -> Result<Option<OwnedFd>, VmmError> {
        if !self.spec.network_device {
            return Ok(None);
        }
        let link = self.shim.network_link();
        link.map(Some).map_err(|error| self.process.explain("while its network was joined", error))
    }

    fn put_overlays_below(&mut self, paths: Vec<PathBuf>) -> Result<(), VmmError> {
        let put = self.put_below(paths);
        put.map_err(|error| self.process.explain("while it was given its disk", error))
    }

    fn map(&mut self, runs: &[MappedRun<'_>]) -> Result<(), VmmError> {
        let mapped = self.shim.map(self.ram, runs);
        mapped.map_err(|error| self.process.explain("while its memory was mapped", error))
    }

    fn load(&mut self, device_state: &File) -> Result<(), VmmError> {
        let loaded = self.try_load(device_state);
        loaded.map_err(|error| self.process.explain("while it loaded device state", error))
    }

    fn resume(&mut self) -> Result<(), VmmError> {
        let resumed = self.monitors.general.execute(&qmp::cont {}, self.spec.deadlines.reply);
        resumed.map(drop).map_err(|error| self.process.explain("while it resumed", error))
    }

    fn resume_when(&mut self, greeting: &Greeting<'_>) -> Result<bool, VmmError> {
        let resumed = self.try_resume_when(greeting);
        resumed.map_err(|error| self.process.explain("while it began to run", error))
    }

    fn pause(&mut self) -> Result<(), VmmError> {
        let paused = self.monitors.general.execute(&qmp::stop {}, self.spec.deadlines.reply);
        paused.map(drop).map_err(|error| self.process.explain("while it was paused", error))
    }

    fn add_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError> {
        self.open_overlay(path)
    }

    fn remove_overlay(&mut self, overlay: &DiskOverlay) -> Result<(), VmmError> {
        self.close_overlay(overlay)
    }

    fn close_frozen_overlays(&mut self) -> Result<(), VmmError> {
        let closed = self.close_frozen();
        closed.map_err(|error| self.process.explain("while its disk was closed for writing", error))
    }

    fn flatten_disk(&mut self, path: PathBuf) -> Result<bool, VmmError> {
        self.flatten_into(path)
    }

    fn limit_files(&mut self, most: ByteCount) -> Result<(), VmmError> {
        match &self.spec.confinement.jail {
            Some(jail) if !self.has_exited() => self.process.limit_files(most, jail.own_user()),
            _ => Ok(()),
        }
    }

    fn is_in_sync(&self) -> bool {
        !self.unconfirmed.stopped && self.unconfirmed.strays.is_empty() && !self.owes_reply()
    }

    fn resync(&mut self, deadline: Duration) -> Result<(), VmmError> {
        self.resync_within(deadline)
    }

    fn load_pause(&mut self, plan: PausePlan) -> Result<(), VmmError> {
        self.load_window(plan)
    }

    fn window(&mut self, _: WindowAccess) -> &mut dyn WindowCommands {
        self
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.process.exit_fd()
    }

    fn has_exited(&self) -> bool {
        self.process.has_exited()
    }

    fn exit_error(&mut self, during: &str) -> Option<VmmError> {
        self.process.exit_error(during)
    }

    fn memory_limit_reached(&self) -> Option<ByteCount> {
        self.process.memory_limit_reached()
    }

    fn last_words(&mut self) -> String {
        self.process.last_words()
    }

    fn console(&self) -> Result<KeptOutput, VmmError> {
        self.process.console()
    }

    fn kill(mut self: Box<Self>) {
        self.process.kill();
    }

    fn release(self: Box<Self>) {
        self.process.release();
    }
}

/// The threads in which the vCPUs run, as the VMM's own namespace numbers them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VcpuThreads {
    /// Those that emulate: perhaps one for all vCPUs.
    emulated: Vec<u32>,
    /// That of the first vCPU, if others have threads of their own.
    first: Option<u32>,
}

impl VcpuThreads {
    fn of(vcpus: &[qmp::CpuInfoFast], are_emulated: bool) -> Self {
        let vcpus: BTreeMap<i64, u32> =
            vcpus.iter().take(limit::VCPUS_MAX as usize).filter_map(thread_of).collect();
        let threads: BTreeSet<u32> = vcpus.values().copied().collect();
        Self {
            first: vcpus.get(&0).copied().filter(|_| threads.len() > 1),
            emulated: if are_emulated { threads.into_iter().collect() } else { Vec::new() },
        }
    }
}

/// Whether it comes true before that time.
fn comes_true(what: &dyn Fn() -> bool, until: Instant, poll_interval: Duration) -> bool {
    loop {
        if what() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(poll_interval);
    }
}

/// A vCPU's number, and its thread.
fn thread_of(vcpu: &qmp::CpuInfoFast) -> Option<(i64, u32)> {
    match vcpu {
        qmp::CpuInfoFast::x86_64(vcpu) => {
            Some((vcpu.cpu_index, u32::try_from(vcpu.thread_id).ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// vCPUs with these numbers and threads, as QEMU tells of them.
    fn vcpus(threads: &[(i64, i64)]) -> Vec<qmp::CpuInfoFast> {
        let told = threads.iter().map(|(index, thread)| {
            serde_json::json!({
                "cpu-index": index, "thread-id": thread, "qom-path": "/x", "props": {},
                "target": "x86_64",
            })
        });
        told.map(|vcpu| serde_json::from_value(vcpu).unwrap()).collect()
    }

    #[test]
    fn the_first_vcpu_goes_first_only_if_others_have_threads_of_their_own() {
        let of = VcpuThreads::of;
        let held = |emulated: &[u32], first| VcpuThreads { emulated: emulated.to_vec(), first };
        assert_eq!(of(&vcpus(&[(0, 7)]), true), held(&[7], None));
        assert_eq!(of(&vcpus(&[(0, 7), (1, 7)]), true), held(&[7], None), "they take turns");
        assert_eq!(of(&vcpus(&[(1, 7), (0, 9)]), true), held(&[7, 9], Some(9)));
        assert_eq!(of(&vcpus(&[(1, 7), (0, 9)]), false), held(&[], Some(9)), "on KVM");
    }
}
