//! A machine with KVM, on any machine: QEMU emulates one whose CPU has AMD's virtualisation.
//!
//! ```text
//! this machine: QEMU, which emulates a machine whose CPU has AMD's virtualisation
//!   that machine: Debian's kernel with kvm_amd, programs of ours from a second disk
//!     guests of the product: the microVM build of QEMU on KVM
//! ```
//!
//! Guarantees: the disks are not changed by a run; the machine has no network. With
//! [`Clock::Instructions`] its time is the number of instructions that it has executed, of its own
//! kernel, of its programs and of their guests, whatever else this machine does.
//!
//! Does not: say how fast KVM is; a guest is emulated twice.

mod payload;

use std::path::Path;
use std::process::{Command, Stdio};

use forkd_sys::tsc;

pub(crate) use self::payload::{PRODUCT_ENVIRONMENT, Payload};
use crate::images::KvmHost;

/// What the machine writes last, before the exit code.
pub(crate) const END: &str = "emulated machine: exit code ";
/// What it writes before what its own kernel said, if a job failed.
pub(crate) const KERNEL: &str = "emulated machine: kernel";

/// Everything in the machine is slow enough by itself, and tests of other tiers run beside it: it
/// goes first where that is permitted.
const NICENESS: &str = "-15";
/// What the machine takes for time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// This machine's.
    Host,
    /// A nanosecond is an instruction. Only what waits while the machine is idle takes this
    /// machine's time.
    Instructions,
}

/// The machine, to be started; what its programs print comes from its standard output.
pub(crate) fn machine(host: &KvmHost, payload: &Path, console: &Path, clock: Clock) -> Command {
    // Where a higher priority is not permitted, this says so and starts it all the same.
    let mut qemu = Command::new("nice");
    qemu.args(["-n", NICENESS, "qemu-system-x86_64", "-machine", "q35"]);
    qemu.args(clock.options());
    // One: with two, emulated at the same time, the machine's kernel panicked or its guests hung
    // in two runs of three.
    qemu.args(["-smp", "1", "-m", &clock.memory_mib().to_string()]);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    qemu.arg("-kernel").arg(&host.kernel).arg("-initrd").arg(&host.initramfs);
    qemu.args(["-append", &command_line(clock)]);
    // Commas in paths are doubled.
    let escaped = |path: &Path| path.to_string_lossy().replace(',', ",,");
    qemu.args(["-serial", &format!("file:{}", escaped(console))]);
    // Not the chardev "stdio": it counts as closed when there is no input, and writes then block.
    qemu.args(["-chardev", "file,id=jobs,path=/dev/stdout"]);
    qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=jobs"]);
    for (name, disk) in [("root", &*host.root_disk), ("payload", payload)] {
        let file = escaped(disk);
        let drive = format!("if=none,id={name},format=raw,readonly=on,file={file}");
        qemu.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={name}")]);
    }
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    qemu
}

impl Clock {
    /// RAM of the machine: its guests and their snapshots live in it. What is counted is a hundred
    /// branches of one guest, of 1.5 GiB too.
    fn memory_mib(self) -> u32 {
        match self {
            Self::Host => 3072,
            Self::Instructions => 8192,
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi", "-cpu", "EPYC,+svm,+npt"],
            // The seed makes the machine's random numbers the same in each run, and with them
            // where programs lie in memory and how their tables are ordered.
            Self::Instructions => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=on",
                "-seed",
                "1",
                "-rtc",
                "base=2026-01-01,clock=vm",
                "-cpu",
                "EPYC,+svm,+npt",
            ],
        }
    }
}

/// The machine's kernel compares its time stamp counter with an emulated timer, which is late on a
/// busy host. It would then distrust the counter, by which KVM gives its guests their time. So it
/// is told the frequency, and not to compare.
fn command_line(clock: Clock) -> String {
    let kilohertz = match clock {
        Clock::Host => tsc::kilohertz(),
        Clock::Instructions => 1_000_000,
    };
    format!(
        "console=ttyS0 reboot=t panic=-1 cryptomgr.notests tsc=reliable tsc_early_khz={kilohertz}"
    )
}
