//! Looking at a lab from outside: processes, states, a VM without an engine.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use forkd_types::{Accelerator, ByteCount, SandboxId, SandboxState, SnapshotTag};
use forkd_vmm::{Abilities, BootSource, Confinement, RamBacking, Start, VmSpec, VmmTools, qemu};
use rustix::process::{Pid, Signal};

use crate::Lab;

/// Longest wait for something that must happen soon.
pub const SOON: Duration = Duration::from_secs(120);

impl Lab {
    /// How many live VMMs name this lab's run directory on their command line.
    #[must_use]
    pub fn vmm_count(&self) -> usize {
        self.vmm_pids().len()
    }

    /// The processes of these VMMs.
    #[must_use]
    pub fn vmm_pids(&self) -> Vec<u32> {
        let run = self.config().run_dir.to_string_lossy().into_owned();
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let is_vmm = |entry: &fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("qemu-system") && line.contains(&run)
        };
        let vmms = entries.filter(is_vmm);
        vmms.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Disk overlays that the VMM of a sandbox has open.
    #[must_use]
    pub fn open_overlays(&self, id: &SandboxId) -> usize {
        let sandbox = self.engine.sandbox(id).expect("the sandbox is known");
        let pid = sandbox.pid.expect("it has a VMM");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("its VMM runs");
        let files: BTreeSet<_> = descriptors
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter(|path| path.extension().is_some_and(|end| end == "qcow2"))
            .collect();
        files.len()
    }

    /// Kills a process that this test started.
    pub fn kill(&self, pid: u32) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, Signal::KILL).expect("the VMM is there to be killed");
    }

    /// Waits until a sandbox has a state.
    pub async fn wait_state(&self, id: &SandboxId, wanted: SandboxState) {
        let begun = Instant::now();
        loop {
            let shown = self.engine.sandbox(id).expect("the sandbox is known");
            let (state, error) = (shown.state, shown.error.unwrap_or_default());
            if state == wanted {
                return;
            }
            // No state follows on this one.
            let never = state == SandboxState::Dead || begun.elapsed() >= SOON;
            assert!(!never, "{id} is {state}, not {wanted}: {error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a snapshot is durable.
    pub async fn wait_durable(&self, tag: &SnapshotTag) {
        let begun = Instant::now();
        while !self.engine.snapshot(tag).expect("the snapshot is known").durable {
            assert!(begun.elapsed() < SOON, "{tag} is not durable");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until something holds; what it is called goes into the failure.
    pub async fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < SOON, "not in time: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the vCPUs of a guest are emulated by one thread, which runs each in turn.
    #[must_use]
    pub fn vcpus_take_turns(&self) -> bool {
        let accelerator = self.engine.accelerator();
        let named = self.config().qemu.clone();
        let program = named.unwrap_or_else(|| qemu::default_program(accelerator));
        let version = qemu::version(&program).expect("QEMU says its version");
        accelerator == Accelerator::Tcg && !qemu::emulates_in_parallel(&version)
    }

    /// A VM without an engine, booting the tiny image.
    #[must_use]
    pub fn bare_vm(&self) -> qemu::QemuVm {
        let config = self.config();
        let image = config.image_dir.join("tiny");
        let directory = config.run_dir.join(SandboxId::random().as_str());
        fs::create_dir(&directory).expect("a directory");
        let accelerator = Accelerator::Tcg;
        let program = config.qemu.clone().unwrap_or_else(|| qemu::default_program(accelerator));
        let spec = VmSpec {
            accelerator,
            cpu: forkd_types::CpuModel::Host,
            memory: ByteCount::from_mib(128),
            vcpus: 1,
            boot: BootSource {
                kernel: config.image_dir.join("kernel/vmlinuz"),
                initramfs: image.join("initramfs.cpio"),
                command_line: "console=ttyS0 quiet reboot=t panic=-1".to_owned(),
            },
            ram: RamBacking::File(config.hot_dir.join(SandboxId::random().as_str())),
            disk: None,
            network_device: false,
            directory,
            start: Start::Boot,
            deadlines: config.deadlines,
            confinement: Confinement::default(),
        };
        let ram = fs::File::create(spec.ram.path()).expect("a RAM file");
        ram.set_len(spec.memory.get()).expect("a RAM file");
        let abilities = Abilities::default();
        let tools = VmmTools { program, shim: config.shim.clone(), launcher: None, abilities };
        qemu::QemuVm::start(spec, &tools).expect("the VM starts")
    }
}
