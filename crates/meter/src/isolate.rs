//! A virtual CPU of our own: everything else that can move goes to the others.
//!
//! A thread of first-in-first-out priority that never waits starves whatever shares its CPU. So the
//! guest's other threads, interrupts and work queues are sent to the other CPUs first. Threads of
//! the kernel that belong to one CPU stay, and are starved for as long as the measurement lasts.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Above the kernel's interrupt threads (50), below its own helpers (99).
const PRIORITY: u8 = 90;

/// The CPUs of this guest: one that is ours, and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub(crate) ours: usize,
    others: Vec<usize>,
}

impl Cpus {
    /// Takes the last CPU of this guest.
    pub(crate) fn take() -> Result<Self, String> {
        let path = "/sys/devices/system/cpu/online";
        let text = fs::read_to_string(path).map_err(|error| format!("read {path}: {error}"))?;
        Self::choose(&text)
    }

    /// From the kernel's list of CPUs, such as `0-3,5`.
    fn choose(list: &str) -> Result<Self, String> {
        let mut others = Vec::new();
        for part in list.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let parse = |text: &str| text.parse::<usize>().map_err(|e| format!("{list:?}: {e}"));
            others.extend(parse(first)?..=parse(last)?);
        }
        match others.pop() {
            Some(ours) if !others.is_empty() => Ok(Self { ours, others }),
            _ => Err("this guest has one virtual CPU, which the measurement would take from \
                      everything else: give it two"
                .to_owned()),
        }
    }

    /// Sends everything else away. Best effort: what cannot be moved stays.
    pub(crate) fn clear(&self) {
        let set = set_of(&self.others);
        for task in tasks() {
            sched_setaffinity(Some(task), &set).ok();
        }
        let mask = self.others.iter().filter(|cpu| **cpu < 64).fold(0_u64, |m, cpu| m | 1 << cpu);
        let mask = format!("{mask:x}");
        for interrupt in names(Path::new("/proc/irq")) {
            fs::write(format!("/proc/irq/{interrupt}/smp_affinity"), &mask).ok();
        }
        fs::write("/sys/devices/virtual/workqueue/cpumask", &mask).ok();
    }

    /// Makes the calling thread the only one that runs on our CPU.
    pub(crate) fn hold(&self) -> io::Result<()> {
        // Otherwise the kernel takes real-time threads away for 50 ms of each second. Where it
        // cannot be written the limit may not exist.
        fs::write("/proc/sys/kernel/sched_rt_runtime_us", "-1").ok();
        sched_setaffinity(None, &set_of(&[self.ours]))?;
        forkd_sys::schedule::become_realtime(PRIORITY)
    }
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu);
    }
    set
}

/// All threads of the machine.
fn tasks() -> Vec<Pid> {
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = names(Path::new("/proc")).into_iter().filter(is_number);
    let threads = processes.flat_map(|pid| names(Path::new(&format!("/proc/{pid}/task"))));
    threads.filter_map(|name| Pid::from_raw(name.parse().ok()?)).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cpu_is_ours_and_one_alone_is_refused() {
        assert_eq!(Cpus::choose("0-1\n").unwrap(), Cpus { ours: 1, others: vec![0] });
        assert_eq!(Cpus::choose("0-2,5").unwrap(), Cpus { ours: 5, others: vec![0, 1, 2] });
        assert!(Cpus::choose("0\n").unwrap_err().contains("one virtual CPU"));
        assert!(Cpus::choose("x").is_err());
    }
}
