//! Starts fake VMs and takes them over.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::{ByteCount, PageIndex};
use rustix::process::Pid;

use super::machine::Machine;
use super::script::{Call, Script};
use super::vm::FakeVm;
use crate::{DiskOverlay, Driver, RamBacking, RunState, Start, Vm, VmSpec, VmmError};

/// Serves the agent's port of one VM until it is closed.
type Guest = dyn Fn(UnixListener) + Send + Sync;

/// The driver of fake VMs. It remembers all of them, so that a VM that one owner has released can
/// be taken over by the next.
pub struct FakeDriver {
    script: Arc<Script>,
    guest: Arc<Guest>,
    machines: Mutex<BTreeMap<i32, (PathBuf, Arc<Machine>)>>,
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeDriver")
    }
}

impl FakeDriver {
    /// VMs whose agent's port `guest` serves, on a thread for each.
    #[must_use]
    pub fn new(guest: impl Fn(UnixListener) + Send + Sync + 'static) -> Arc<Self> {
        let (script, machines) = (Arc::default(), Mutex::default());
        Arc::new(Self { script, guest: Arc::new(guest), machines })
    }

    /// What goes wrong, and what was asked.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<i32, (PathBuf, Arc<Machine>)>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn machine(&self, pid: u32) -> Option<Arc<Machine>> {
        let pid = i32::try_from(pid).ok()?;
        self.machines().get(&pid).map(|(_, machine)| Arc::clone(machine))
    }

    /// The first word of a page of a VM's RAM; none for a VM that has none.
    #[must_use]
    pub fn read(&self, pid: u32, page: PageIndex) -> Option<u64> {
        self.machine(pid)?.read(page)
    }

    /// The guest of a VM writes the first word of a page of its RAM.
    pub fn write(&self, pid: u32, page: PageIndex, value: u64) {
        if let Some(machine) = self.machine(pid) {
            machine.write(page, value);
        }
    }

    /// The guest of a VM writes so many bytes to its disk.
    ///
    /// # Errors
    /// When its VMM may not write so large a file.
    pub fn write_disk(&self, pid: u32, bytes: ByteCount) -> io::Result<()> {
        self.machine(pid).ok_or(io::ErrorKind::NotFound)?.write_disk(bytes)
    }

    /// The largest file that a VMM may write.
    #[must_use]
    pub fn file_max(&self, pid: u32) -> Option<ByteCount> {
        self.machine(pid)?.state().file_max
    }

    /// Changes what a VM says that its disk consists of, the lowest overlay first.
    pub fn change_disk(&self, pid: u32, change: impl FnOnce(&mut Vec<DiskOverlay>)) {
        if let Some(machine) = self.machine(pid)
            && let Some(disk) = &mut machine.state().disk
        {
            change(&mut disk.overlays);
        }
    }

    /// Whether a VM's vCPUs run.
    #[must_use]
    pub fn run_state(&self, pid: u32) -> Option<RunState> {
        let machine = self.machine(pid)?;
        let state = machine.state().run_state;
        (!machine.has_exited()).then_some(state)
    }

    /// Kills a VM as anybody could.
    pub fn kill(&self, pid: u32) {
        if let Some(machine) = self.machine(pid) {
            machine.kill();
        }
    }

    /// How many VMs there are.
    #[must_use]
    pub fn living(&self) -> usize {
        self.machines().values().filter(|(_, machine)| !machine.has_exited()).count()
    }
}

impl Driver for FakeDriver {
    fn start(&self, spec: VmSpec) -> Result<Box<dyn Vm>, VmmError> {
        let machine = Arc::new(Machine::start(&spec)?);
        if let RamBacking::File(path) = &spec.ram {
            // What a guest that boots would have written.
            let written = std::fs::OpenOptions::new().write(true).open(path);
            written
                .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"booted", 0))
                .map_err(|source| VmmError::file("write", path, source))?;
        }
        if spec.start == Start::Boot {
            machine.state().run_state = RunState::Running;
        }
        let port = machine.port().map_err(|e| VmmError::file("listen on", "port", e))?;
        let guest = Arc::clone(&self.guest);
        std::thread::spawn(move || guest(port));
        let known = (spec.directory.clone(), Arc::clone(&machine));
        self.machines().insert(machine.pid.as_raw_nonzero().get(), known);
        let mut vm = FakeVm::new(spec, machine, Arc::clone(&self.script));
        vm.asked(Call::Start)?;
        Ok(Box::new(vm))
    }

    fn adopt(
        &self,
        mut spec: VmSpec,
        pid: Pid,
        _ram_address: u64,
        state: RunState,
    ) -> Result<Box<dyn Vm>, VmmError> {
        let number = pid.as_raw_nonzero().get();
        let machine = self.machines().get(&number).map(|(_, machine)| Arc::clone(machine));
        let gone = || VmmError::Gone {
            during: "before it was taken over".to_owned(),
            last_words: String::new(),
        };
        let machine = machine.filter(|machine| !machine.has_exited()).ok_or_else(gone)?;
        spec.disk = machine.state().disk.clone();
        let mut vm = FakeVm::new(spec, machine, Arc::clone(&self.script));
        if let Err(error) = vm.asked(Call::Adopt) {
            Box::new(vm).release();
            return Err(error);
        }
        vm.set_run_state(state);
        Ok(Box::new(vm))
    }

    fn processes_in(&self, run_dir: &Path) -> Vec<Pid> {
        let machines = self.machines();
        let here = machines.values().filter(|(directory, _)| directory.starts_with(run_dir));
        here.filter(|(_, machine)| !machine.has_exited()).map(|(_, machine)| machine.pid).collect()
    }
}
