//! One fake VM under control.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_sys::pagemap::page_tables;
use forkd_sys::uffd::Userfaultfd;
use forkd_types::ByteCount;
use rustix::process::Pid;

use super::machine::Machine;
use super::script::{Call, Fault, Script};
use crate::window_commands::{WindowAccess, WindowCommands};
use crate::{
    Disk, DiskOverlay, Greeting, GuestRam, KeptOutput, MappedRun, PausePlan, RunState, Vm, VmSpec,
    VmmError,
};

#[derive(Debug)]
pub(super) struct FakeVm {
    spec: VmSpec,
    machine: Arc<Machine>,
    script: Arc<Script>,
    /// Calls that were not answered, and are done when the VMM answers again.
    owed: Vec<Call>,
    loaded: Option<PausePlan>,
    /// The window has stopped the vCPUs, and they are not known to run again.
    stopped: bool,
    released: bool,
}

impl FakeVm {
    pub(super) fn new(spec: VmSpec, machine: Arc<Machine>, script: Arc<Script>) -> Self {
        let (owed, loaded) = (Vec::new(), None);
        Self { spec, machine, script, owed, loaded, stopped: false, released: false }
    }

    /// A call is made: fails as the script says.
    pub(super) fn asked(&mut self, call: Call) -> Result<(), VmmError> {
        let fault = self.script.next(call);
        if !self.owed.is_empty() {
            return Err(self.silence(call));
        }
        match fault {
            None => {}
            Some(Fault::Delay(time)) => std::thread::sleep(time),
            Some(Fault::Refusal) => {
                let description = "as the script says".to_owned();
                return Err(VmmError::Refused { command: call.name(), description });
            }
            Some(Fault::Silence) => {
                self.owed.push(call);
                return Err(self.silence(call));
            }
            Some(Fault::Hang) => self.script.wait_until_it_speaks(),
            Some(Fault::Death) => self.machine.kill(),
        }
        match self.exit_error(call.name()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn silence(&self, call: Call) -> VmmError {
        VmmError::Silent { command: call.name(), deadline: self.spec.deadlines.reply }
    }

    pub(super) fn set_run_state(&mut self, state: RunState) {
        self.machine.state().run_state = state;
    }

    /// Does what a call of the window is for.
    fn execute(&mut self, call: Call) -> Result<(), VmmError> {
        match call {
            Call::Stop => self.set_run_state(RunState::Paused),
            Call::WindowResume | Call::Resume => {
                self.set_run_state(RunState::Running);
                self.stopped = false;
            }
            Call::Pause => self.set_run_state(RunState::Paused),
            Call::SaveDeviceState => {
                let Some(plan) = &self.loaded else { return Ok(()) };
                let saved = std::fs::write(&plan.device_state, b"device state");
                saved.map_err(|e| VmmError::file("write", &plan.device_state, e))?;
            }
            Call::FreezeDisk => {
                let overlay = self.loaded.as_ref().and_then(|plan| plan.overlay.clone());
                if let (Some(disk), Some(overlay)) = (&mut self.spec.disk, overlay) {
                    disk.overlays.push(overlay);
                }
                self.keep_disk();
            }
            _ => {}
        }
        Ok(())
    }

    /// The disk is the VMM's, whoever controls it.
    fn keep_disk(&self) {
        self.machine.state().disk.clone_from(&self.spec.disk);
    }

    fn next_node(&self) -> String {
        let mut state = self.machine.state();
        let node = format!("overlay{}", state.overlays_made);
        state.overlays_made += 1;
        node
    }

    fn window_call(&mut self, call: Call) -> Result<(), VmmError> {
        self.asked(call)?;
        self.execute(call)
    }
}

impl Vm for FakeVm {
    fn spec(&self) -> &VmSpec {
        &self.spec
    }

    fn pid(&self) -> Pid {
        self.machine.pid
    }

    fn ram(&self) -> GuestRam {
        let pid = rustix::process::getpid();
        let address = self.machine.ram().map_or(0, |ram| ram.address());
        GuestRam { pid, address, length: self.spec.memory }
    }

    fn page_tables(&mut self) -> Result<File, VmmError> {
        let opened = page_tables(self.ram().pid);
        opened.map_err(|source| VmmError::file("open the page tables of", "itself", source))
    }

    fn userfaultfd(&mut self) -> Result<Userfaultfd, VmmError> {
        self.asked(Call::Userfaultfd)?;
        Ok(Userfaultfd::for_this_process()?)
    }

    fn network_link(&mut self) -> Result<Option<OwnedFd>, VmmError> {
        if !self.spec.network_device {
            return Ok(None);
        }
        self.asked(Call::NetworkLink)?;
        let end = self.machine.far_end().map_err(|source| VmmError::NetworkLink { source })?;
        Ok(Some(end))
    }

    fn put_overlays_below(&mut self, paths: Vec<PathBuf>) -> Result<(), VmmError> {
        self.asked(Call::PutOverlaysBelow)?;
        let below = paths.into_iter().map(|path| DiskOverlay { path, node: self.next_node() });
        let below: Vec<DiskOverlay> = below.collect();
        if let Some(Disk { overlays, .. }) = &mut self.spec.disk {
            overlays.splice(0..0, below);
        }
        self.keep_disk();
        Ok(())
    }

    fn map(&mut self, runs: &[MappedRun<'_>]) -> Result<(), VmmError> {
        self.asked(Call::Map)?;
        let mapped = self.machine.map(&self.spec, runs);
        mapped.map_err(|source| VmmError::file("map", self.spec.ram.path(), source))
    }

    fn load(&mut self, mut device_state: &File) -> Result<(), VmmError> {
        self.asked(Call::Load)?;
        let mut state = Vec::new();
        let read = device_state.read_to_end(&mut state);
        read.map_err(|source| VmmError::file("load", self.spec.ram.path(), source))?;
        if state.is_empty() {
            let description = "no device state".to_owned();
            return Err(VmmError::Refused { command: Call::Load.name(), description });
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), VmmError> {
        self.asked(Call::Resume)?;
        self.execute(Call::Resume)
    }

    fn resume_when(&mut self, _: &Greeting<'_>) -> Result<bool, VmmError> {
        Vm::resume(self).map(|()| true)
    }

    fn pause(&mut self) -> Result<(), VmmError> {
        self.asked(Call::Pause)?;
        self.execute(Call::Pause)
    }

    fn add_overlay(&mut self, path: PathBuf) -> Result<DiskOverlay, VmmError> {
        self.asked(Call::AddOverlay)?;
        match path.exists() {
            true => Ok(DiskOverlay { path, node: self.next_node() }),
            false => Err(VmmError::MissingFile { what: "the disk overlay", path }),
        }
    }

    fn remove_overlay(&mut self, overlay: &DiskOverlay) -> Result<(), VmmError> {
        self.asked(Call::RemoveOverlay)?;
        assert!(overlay.path.exists(), "an overlay is removed while the VMM has it open");
        Ok(())
    }

    fn close_frozen_overlays(&mut self) -> Result<(), VmmError> {
        self.asked(Call::CloseFrozenOverlays)
    }

    fn flatten_disk(&mut self, path: PathBuf) -> Result<bool, VmmError> {
        self.asked(Call::FlattenDisk)?;
        let merged = DiskOverlay { path, node: self.next_node() };
        let Some(Disk { overlays, .. }) = &mut self.spec.disk else { return Ok(false) };
        if overlays.len() < 3 {
            return Ok(false);
        }
        let top = overlays.pop();
        self.machine
            .merge(overlays, &merged.path)
            .map_err(|source| VmmError::file("merge into", &merged.path, source))?;
        *overlays = std::iter::once(merged).chain(top).collect();
        self.keep_disk();
        Ok(true)
    }

    fn limit_files(&mut self, most: ByteCount) -> Result<(), VmmError> {
        self.asked(Call::LimitFiles)?;
        let started_with = self.spec.confinement.file_max;
        self.machine.state().file_max = Some(started_with.map_or(most, |had| had.min(most)));
        Ok(())
    }

    fn is_in_sync(&self) -> bool {
        self.owed.is_empty() && !self.stopped
    }

    fn resync(&mut self, deadline: Duration) -> Result<(), VmmError> {
        if self.is_in_sync() {
            return Ok(());
        }
        let fault = self.script.next(Call::Resync);
        if self.script.is_silent() || fault == Some(Fault::Silence) {
            return Err(VmmError::Silent { command: Call::Resync.name(), deadline });
        }
        for call in std::mem::take(&mut self.owed) {
            self.execute(call)?;
        }
        self.loaded = None;
        if self.stopped {
            self.execute(Call::Resume)?;
        }
        Ok(())
    }

    fn load_pause(&mut self, plan: PausePlan) -> Result<(), VmmError> {
        self.resync(self.spec.deadlines.reply)?;
        self.asked(Call::LoadPause)?;
        self.loaded = Some(plan);
        Ok(())
    }

    fn window(&mut self, _: WindowAccess) -> &mut dyn WindowCommands {
        self
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        match self.script.next(Call::ExitWatch) {
            Some(_) => self.machine.plain_file.as_fd(),
            None => self.machine.pidfd.as_fd(),
        }
    }

    fn has_exited(&self) -> bool {
        self.machine.has_exited()
    }

    fn exit_error(&mut self, during: &str) -> Option<VmmError> {
        let during = during.to_owned();
        self.has_exited().then(|| VmmError::Gone { during, last_words: self.last_words() })
    }

    fn memory_limit_reached(&self) -> Option<ByteCount> {
        None
    }

    fn last_words(&mut self) -> String {
        "killed".to_owned()
    }

    fn console(&self) -> Result<KeptOutput, VmmError> {
        Ok(KeptOutput::default())
    }

    fn kill(self: Box<Self>) {
        // By dropping it.
    }

    fn release(mut self: Box<Self>) {
        self.released = true;
    }
}

impl WindowCommands for FakeVm {
    fn stop(&mut self) -> Result<(), VmmError> {
        self.stopped = true;
        self.window_call(Call::Stop)
    }

    fn save_device_state(&mut self) -> Result<(), VmmError> {
        self.window_call(Call::SaveDeviceState)
    }

    fn freeze_disk(&mut self) -> Result<(), VmmError> {
        self.window_call(Call::FreezeDisk)
    }

    fn resume(&mut self) -> Result<Option<Duration>, VmmError> {
        self.window_call(Call::WindowResume)?;
        Ok(None)
    }

    fn resume_early(&mut self) {
        if self.owed.is_empty() && !self.has_exited() {
            // Only a refusal is left, which leaves `stopped` as it is.
            self.window_call(Call::WindowResume).ok();
        }
    }

    fn unload(&mut self) {
        if self.owed.is_empty() {
            self.loaded = None;
        }
    }

    fn kill(&mut self) {
        self.machine.kill();
    }
}

impl Drop for FakeVm {
    fn drop(&mut self) {
        if !self.released {
            self.machine.kill();
        }
    }
}
