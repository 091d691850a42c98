//! What the kernel says of a process (`proc(5)`).

use std::collections::BTreeMap;
use std::fs;
use std::io;

use forkd_types::ByteCount;

/// Memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    /// Pages of its own.
    pub(super) private: ByteCount,
    /// The same and its share of what it has in common with others.
    pub(super) proportional: ByteCount,
}

/// Processor time of each thread of a process, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CpuTimes(BTreeMap<u32, ThreadTime>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ThreadTime {
    is_vcpu: bool,
    ns: u64,
}

/// Processor time that a process has used, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// By threads that run guest code: its translation counts too, where it is emulated.
    pub(super) guest_ns: u64,
    /// By all other threads.
    pub(super) vmm_ns: u64,
}

/// Memory of the process `pid`.
pub(super) fn memory(pid: u32) -> Result<Memory, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    memory_of(&text).ok_or_else(|| format!("{path} has no such figure"))
}

/// With one child alone, pages of layers would count as private: so what is its own is told by
/// `Anonymous`.
fn memory_of(text: &str) -> Option<Memory> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(ByteCount::new(kibibytes << 10))
    };
    Some(Memory { private: value("Anonymous")?, proportional: value("Pss")? })
}

/// Host memory that programs can still get.
pub(super) fn host_memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

impl CpuTimes {
    /// Of all threads of the process `pid`.
    pub(super) fn of(pid: u32) -> Result<Self, String> {
        let path = format!("/proc/{pid}/task");
        Self::read(&path).map_err(|error| format!("{path}: {error}"))
    }

    fn read(path: &str) -> io::Result<Self> {
        let mut times = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let (folder, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let read = |file| fs::read_to_string(folder.join(file));
            // A thread that has just ended has no figures any more.
            let (Ok(schedule), Ok(name)) = (read("schedstat"), read("comm")) else { continue };
            let ns = schedule.split(' ').next().and_then(|ns| ns.parse().ok());
            let ns = ns.ok_or(io::ErrorKind::InvalidData)?;
            times.insert(number, ThreadTime { is_vcpu: name.starts_with("CPU "), ns });
        }
        Ok(Self(times))
    }

    /// What was used since `earlier`, by threads that are still there.
    pub(super) fn since(&self, earlier: &Self) -> Used {
        let mut used = Used::default();
        for (number, time) in &self.0 {
            let before = earlier.0.get(number).map_or(0, |time| time.ns);
            let sum = if time.is_vcpu { &mut used.guest_ns } else { &mut used.vmm_ns };
            *sum += time.ns.saturating_sub(before);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_does_not_depend_on_who_else_maps_a_layer() {
        let text = "0-1 ---p [rollup]\nRss: 9 kB\nPss:    100 kB\nPss_Dirty: 3 kB\n\
                    Private_Dirty: 90 kB\nAnonymous:   40 kB\n";
        let memory = memory_of(text).unwrap();
        assert_eq!((memory.private.get(), memory.proportional.get()), (40 << 10, 100 << 10));
        assert_eq!(memory_of("Pss: 1 kB\n"), None);
    }

    #[test]
    fn time_of_vcpus_is_the_guests_and_a_thread_that_came_counts_in_full() {
        let time = |is_vcpu, ns| ThreadTime { is_vcpu, ns };
        let before = CpuTimes([(1, time(false, 10)), (2, time(true, 20))].into());
        let after =
            CpuTimes([(1, time(false, 13)), (2, time(true, 25)), (3, time(false, 7))].into());
        assert_eq!(after.since(&before), Used { guest_ns: 5, vmm_ns: 10 });
        assert_eq!(after.since(&CpuTimes::default()), Used { guest_ns: 25, vmm_ns: 20 });
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        let pid = std::process::id();
        assert!(memory(pid).unwrap().private.get() > 0);
        let before = CpuTimes::of(pid).unwrap();
        let begun = std::time::Instant::now();
        // Until the kernel has counted some of it.
        while CpuTimes::of(pid).unwrap().since(&before).vmm_ns == 0 {
            assert!(begun.elapsed().as_secs() < 120, "no time is counted");
        }
    }
}
