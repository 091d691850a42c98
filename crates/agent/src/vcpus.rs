//! Keeping programs from running on any vCPU while an identity is taken.
//!
//! The vCPUs of a child go on at the branch point, each in its program. The port's interrupt
//! reaches one of them. So with several it is always the first one, to which the thread that reads
//! the port is bound; and on each other one a thread of the same priority waits, which that thread
//! wakes before it takes the identity. Until it has done so the others do nothing, and nobody else
//! runs.
//!
//! Does not do: keep a vCPU from its program before the interrupt of another one has reached it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use forkd_sys::schedule::become_realtime;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Longer than it takes. An idle vCPU is not what a guest should be left with.
const HOLD_MAX: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 32 * 1024;

static READER_IS_BOUND: AtomicBool = AtomicBool::new(false);

/// The vCPUs of this machine, and a thread on each but the first one.
pub(crate) struct Vcpus {
    others: Vec<Thread>,
    are_held: Arc<AtomicBool>,
}

/// While this lives no other vCPU runs a program, from the moment that its thread is awake.
pub(crate) struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Vcpus {
    /// Starts the threads, with this real-time priority. None in a machine with one vCPU.
    pub(crate) fn prepare(priority: u8) -> io::Result<Self> {
        let all = sched_getaffinity(None)?;
        let are_held = Arc::new(AtomicBool::new(false));
        let mut others = Vec::new();
        for vcpu in (0..CpuSet::MAX_CPU).filter(|vcpu| all.is_set(*vcpu)).skip(1) {
            let are_held = Arc::clone(&are_held);
            let name = thread::Builder::new().name(format!("hold-{vcpu}"));
            let wait = move || hold_on(vcpu, priority, &are_held);
            others.push(name.stack_size(STACK_BYTES).spawn(wait)?.thread().clone());
        }
        Ok(Self { others, are_held })
    }

    /// Binds the calling thread to the first vCPU, and the interrupt of the port at this device.
    pub(crate) fn bind_to_first(&self, port: &Path) -> io::Result<()> {
        if self.others.is_empty() {
            return Ok(());
        }
        sched_setaffinity(None, &only(first(&sched_getaffinity(None)?)))?;
        READER_IS_BOUND.store(true, Ordering::Relaxed);
        bind_interrupt(port)
    }

    /// Holds the other vCPUs.
    pub(crate) fn hold_others(&self) -> Held<'_> {
        self.are_held.store(true, Ordering::Release);
        self.others.iter().for_each(Thread::unpark);
        Held(&self.are_held)
    }
}

/// Lets the calling thread, and what it starts, run on any vCPU: threads that the one that reads
/// the port starts are bound as it is.
pub(crate) fn leave_first() {
    if !READER_IS_BOUND.load(Ordering::Relaxed) {
        return;
    }
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|vcpu| all.set(vcpu));
    // The kernel takes those that there are. Where it does not, the thread is only slower.
    sched_setaffinity(None, &all).ok();
}

fn first(vcpus: &CpuSet) -> usize {
    (0..CpuSet::MAX_CPU).find(|vcpu| vcpus.is_set(*vcpu)).unwrap_or_default()
}

fn only(vcpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(vcpu);
    set
}

/// Waits on this vCPU until it is held, and keeps it busy as long as it is.
fn hold_on(vcpu: usize, priority: u8, are_held: &AtomicBool) {
    let ready = sched_setaffinity(None, &only(vcpu))
        .map_err(io::Error::from)
        .and_then(|()| become_realtime(priority));
    if let Err(error) = ready {
        // Programs on it may run early; the identity is taken all the same.
        return crate::log::failure(&format!("vCPU {vcpu} cannot be held: {error}"));
    }
    loop {
        thread::park();
        let until = Instant::now() + HOLD_MAX;
        while are_held.load(Ordering::Acquire) && Instant::now() < until {
            // Emulated vCPUs that take turns give theirs up here.
            std::hint::spin_loop();
        }
    }
}

/// Lets the first vCPU have the interrupts of the device that the port belongs to.
fn bind_interrupt(port: &Path) -> io::Result<()> {
    let name = port.file_name().unwrap_or_default();
    let device = fs::read_link(Path::new("/sys/class/virtio-ports").join(name).join("device"))?;
    let device = device.file_name().unwrap_or_default().to_string_lossy();
    for number in interrupts_of(&device, &fs::read_to_string("/proc/interrupts")?) {
        fs::write(format!("/proc/irq/{number}/smp_affinity_list"), "0")?;
    }
    Ok(())
}

/// The numbers of the interrupts of a device, as `/proc/interrupts` names it: alone, or with what
/// each is for.
fn interrupts_of<'a>(device: &str, table: &'a str) -> Vec<&'a str> {
    let is_its = |name: &str| {
        name.strip_prefix(device).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let number = |line: &'a str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        is_its(rest.split_whitespace().last()?).then_some(number)
    };
    table.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupts_of_a_device_are_found_by_its_name() {
        let table = concat!(
            "           CPU0       CPU1\n",
            "  1:          9          0   IO-APIC   1-edge      i8042\n",
            " 17:        100         12   IO-APIC  17-edge      virtio1\n",
            " 24:          3          4   IO-APIC  24-edge      virtio12\n",
            " 25:          0          0   PCI-MSI   1-edge      virtio1-config\n",
            "NMI:          0          0   Non-maskable interrupts\n",
        );
        assert_eq!(interrupts_of("virtio1", table), ["17", "25"]);
        assert_eq!(interrupts_of("virtio12", table), ["24"]);
        assert!(interrupts_of("virtio2", table).is_empty());
    }
}
