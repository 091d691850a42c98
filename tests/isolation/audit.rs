//! What can be seen of a process from outside, and what must be seen of a confined one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Users of VMMs.
const USERS: std::ops::RangeInclusive<u32> = 0x7000_0000..=0x7fff_ffff;
const NAMESPACES: [&str; 6] = ["ipc", "mnt", "net", "pid", "user", "uts"];
/// Files of its own that a VMM may have open, as it names them.
const OWN_FILES: [&str; 6] = ["/ram", "/disk/", "/state/", "/dev/null", "/dev/kvm", "/boot/"];
/// Descriptors without a file: sockets, events, timers, and memory.
const NAMELESS: [&str; 4] = ["socket:", "anon_inode:", "pipe:", "/memfd:"];

/// What is not as it must be, in words; `others` are processes that it must have nothing in common
/// with.
pub(crate) fn violations(pid: u32, others: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        of_thread(&task.path(), &mut found);
    }
    let user = |pid: u32| field(Path::new(&format!("/proc/{pid}")), "Uid");
    for other in others {
        if user(*other) == user(pid) {
            found.push(format!("its user is that of process {other}"));
        }
        for namespace in NAMESPACES {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
            if of(*other) == of(pid) {
                found.push(format!("its {namespace} namespace is that of process {other}"));
            }
        }
    }
    of_descriptors(pid, &mut found);
    of_limits(pid, &mut found);
    of_cgroups(pid, &mut found);
    found.sort();
    found.dedup();
    found
}

pub(crate) fn of_thread(thread: &Path, found: &mut Vec<String>) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let capabilities = field(thread, set);
        if !capabilities.trim_start_matches('0').is_empty() {
            found.push(format!("{set} is {capabilities}"));
        }
    }
    for (name, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        let value = field(thread, name);
        if value != wanted {
            found.push(format!("{name} is {value}"));
        }
    }
    for name in ["Uid", "Gid"] {
        let ids = field(thread, name);
        let in_range = |id: &str| id.parse().is_ok_and(|id| USERS.contains(&id));
        if !ids.split_whitespace().all(in_range) {
            found.push(format!("{name} is {ids}"));
        }
    }
    let groups = field(thread, "Groups");
    if !groups.is_empty() && !Path::new("/dev/kvm").exists() {
        found.push(format!("Groups are {groups}"));
    }
}

fn of_descriptors(pid: u32, found: &mut Vec<String>) {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let names: BTreeSet<String> = links
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    for name in names {
        // Its standard output, which is on the host.
        let is_output = name.ends_with("/vmm.fifo");
        let is_own = OWN_FILES.iter().chain(&NAMELESS).any(|start| name.starts_with(start));
        if !is_own && !is_output {
            found.push(format!("it has `{name}` open"));
        }
    }
}

fn of_limits(pid: u32, found: &mut Vec<String>) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let hard = |name: &str| -> Option<u64> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    for (name, most) in [
        ("Max core file size", 0),
        ("Max file size", 16 << 30),
        ("Max processes", 512),
        ("Max open files", 1024),
    ] {
        if hard(name).is_none_or(|limit| limit > most) {
            found.push(format!("{name} is {:?}", hard(name)));
        }
    }
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    if score.trim() != "500" {
        found.push(format!("oom_score_adj is {}", score.trim()));
    }
}

/// Each controller that limits a VMM is in a group of its own.
fn of_cgroups(pid: u32, found: &mut Vec<String>) {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let limiting = groups.lines().filter(|line| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.split(',').any(|name| ["memory", "cpu", "pids"].contains(&name))
    });
    let unified = groups.lines().filter(|line| line.starts_with("0::"));
    let all: Vec<&str> = limiting.collect();
    let all = if all.is_empty() { unified.collect() } else { all };
    for line in all.iter().filter(|line| !line.contains("/forkd-")) {
        found.push(format!("it is in the cgroup {line}"));
    }
}

pub(crate) fn field(process: &Path, name: &str) -> String {
    let status = fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
