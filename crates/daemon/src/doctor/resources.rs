//! How much the host has to give, and how sandboxes can be confined. None of it is required.

use std::fs;

use forkd_engine::host;
use forkd_types::limit;
use rustix::process::{Resource, getrlimit};

use super::check::Check;

/// Descriptors that the daemon has open for one sandbox that has been branched.
const DESCRIPTORS_PER_SANDBOX: u64 = 16;
/// A limit that allows fewer sandboxes than this gets in the way.
const SANDBOXES_COMFORTABLE: u64 = 60;

/// Memory, swap, descriptors, mappings, cgroups, namespaces.
pub(super) fn all() -> Vec<Check> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let descriptors = getrlimit(Resource::Nofile).current;
    vec![
        memory(&read("/proc/meminfo"), &read("/proc/sys/vm/overcommit_memory")),
        swap(&read("/proc/swaps")),
        open_files(descriptors.unwrap_or(u64::MAX)),
        mappings(&read("/proc/sys/vm/max_map_count")),
        limits(),
        networks(),
    ]
}

fn memory(meminfo: &str, overcommit: &str) -> Check {
    const NAME: &str = "memory";
    if overcommit.trim() == "2" {
        let detail = "the kernel counts guest memory that children share once for each child";
        return Check::warn(NAME, detail, "sysctl vm.overcommit_memory=0");
    }
    match host::available_memory(meminfo) {
        Some(free) if free < host::MEMORY_COMFORTABLE => {
            Check::warn(NAME, format!("{free} available"), "end other programs, or add memory")
        }
        Some(free) => Check::ok(NAME, format!("{free} available")),
        None => Check::warn(NAME, "/proc/meminfo has no figure", "mount /proc"),
    }
}

/// The first line has titles.
fn swap(swaps: &str) -> Check {
    const NAME: &str = "swap";
    let areas = swaps.lines().skip(1).count();
    if areas == 0 {
        return Check::ok(NAME, "none");
    }
    let remedy = "swapoff -a; with swap, forkd looks for dirty pages in the pause of a branch";
    Check::warn(NAME, format!("{areas} area(s) in use"), remedy)
}

fn open_files(limit: u64) -> Check {
    const NAME: &str = "open files";
    let sandboxes = limit / DESCRIPTORS_PER_SANDBOX;
    let detail = format!("{limit} at once, enough for about {sandboxes} sandboxes");
    if sandboxes < SANDBOXES_COMFORTABLE {
        let remedy = "ulimit -n 65536, or LimitNOFILE= in the unit";
        return Check::warn(NAME, detail, remedy);
    }
    Check::ok(NAME, if limit == u64::MAX { "no limit".to_owned() } else { detail })
}

fn mappings(max: &str) -> Check {
    const NAME: &str = "mappings";
    let max: u64 = max.trim().parse().unwrap_or(u64::MAX);
    if max < 2 * limit::RUNS_MAPPED_MAX as u64 {
        let detail = format!("{max} in a process; a child of a fragmented snapshot needs more");
        return Check::warn(NAME, detail, "sysctl vm.max_map_count=65530");
    }
    Check::ok(NAME, format!("{max} in a process"))
}

fn limits() -> Check {
    const NAME: &str = "limits of VMMs";
    let remedy = "run the daemon as root, or under systemd with the unit in deploy/, which \
                  delegates the controllers";
    match host::try_limits() {
        Ok(support) if support.missing.is_empty() => {
            let bases: Vec<_> =
                support.bases.iter().map(|base| base.display().to_string()).collect();
            Check::ok(NAME, format!("forkd limited a cgroup in `{}`", bases.join("`, `")))
        }
        Ok(support) => Check::warn(NAME, support.missing.join("; "), remedy),
        Err(problem) => Check::warn(NAME, problem, remedy),
    }
}

fn networks() -> Check {
    const NAME: &str = "namespaces";
    match host::try_network() {
        Ok(()) => Check::ok(NAME, "forkd created a network namespace"),
        Err(problem) => {
            let remedy = "only `per_child_netns` needs it: give the daemon CAP_SYS_ADMIN";
            Check::warn(NAME, format!("no network namespace: {problem}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn what_is_scarce_warns_with_a_remedy_and_plenty_does_not() {
        let plenty = "MemTotal: 9 kB\nMemAvailable:   22644000 kB\n";
        let scarce = "MemAvailable: 900000 kB\n";
        let swaps = "Filename Type Size\n/dev/sda2 partition 7\n";
        for (good, bad) in [
            (memory(plenty, "0\n"), memory(scarce, "0\n")),
            (memory(plenty, "1"), memory(plenty, "2\n")),
            (memory(plenty, "0"), memory("", "0")),
            (swap("Filename Type Size\n"), swap(swaps)),
            (open_files(1024), open_files(256)),
            (mappings("65530\n"), mappings("1000\n")),
        ] {
            assert_eq!((good.outcome, good.remedy.is_some()), (Outcome::Ok, false), "{good:?}");
            assert_eq!((bad.outcome, bad.remedy.is_some()), (Outcome::Warn, true), "{bad:?}");
        }
    }
}
