//! What can be seen of a process from outside, and what must be seen of a confined one.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use forkd_types::{Accelerator, Isolation};
use forkd_vmm::qemu;

/// Users of VMMs where the daemon is root.
const USERS: RangeInclusive<u32> = 0x7000_0000..=0x7fff_ffff;
const NAMESPACES: [&str; 6] = ["ipc", "mnt", "net", "pid", "user", "uts"];
/// Filters of a VMM: two of the preload library, and QEMU's own, which `qemu-img` has not.
const FILTERS: &str = "3";
const FILTERS_OF_IMG: &str = "2";
/// Connections of the daemon to a VMM that a branch opens: they stay.
const OF_A_BRANCH: usize = 4;
/// Eventfds of a VMM itself.
const EVENTS: usize = 5;
/// Queues of the console, which has two ports, and of the network device.
const QUEUES: usize = 6 + 3;
/// The first QEMU that waits at an eventfd for each queue under emulation as well as on KVM (its
/// commit 126e7f780367).
const EMULATES_QUEUE_EVENTS: (u32, u32) = (8, 2);

/// What is not as it must be of a VMM with that level, in words; `others` are processes that it
/// must have nothing in common with.
#[must_use]
pub fn violations(pid: u32, others: &[u32], level: Isolation) -> Vec<String> {
    let users = (level == Isolation::Full).then_some(USERS);
    let mut found = of_process(pid, others, users, FILTERS);
    if level == Isolation::Full {
        of_cgroups(pid, &mut found);
    }
    found
}

/// The same of a VMM that has a user of its own, and a group, among `ids`, which were given to a
/// daemon that is not root and has no cgroups.
#[must_use]
pub fn violations_among(pid: u32, others: &[u32], ids: RangeInclusive<u32>) -> Vec<String> {
    of_process(pid, others, Some(ids), FILTERS)
}

/// The same, at the level [`Isolation::Full`], of a VMM whose QEMU has not made its machine yet:
/// its own filter comes after that. Where KVM does not work, the machine is never complete.
#[must_use]
pub fn violations_before_the_machine(pid: u32, others: &[u32]) -> Vec<String> {
    let mut found = violations_of_img(pid, others);
    of_cgroups(pid, &mut found);
    found
}

/// The same of a `qemu-img` that has no cgroup, at the level [`Isolation::Full`].
#[must_use]
pub fn violations_of_img(pid: u32, others: &[u32]) -> Vec<String> {
    of_process(pid, others, Some(USERS), FILTERS_OF_IMG)
}

/// `users`: of which it has one to itself, if any.
fn of_process(
    pid: u32,
    others: &[u32],
    users: Option<RangeInclusive<u32>>,
    filters: &str,
) -> Vec<String> {
    let has_own = users.is_some();
    let mut found = of_threads(pid, users, filters);
    let user = |pid: u32| field(Path::new(&format!("/proc/{pid}")), "Uid");
    for other in others {
        if has_own && user(*other) == user(pid) {
            found.push(format!("its user is that of process {other}"));
        }
        for namespace in NAMESPACES {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{namespace}"));
            if of(*other).expect("the other runs") == of(pid).expect("the VMM runs") {
                found.push(format!("its {namespace} namespace is that of process {other}"));
            }
        }
    }
    of_mounts(pid, &mut found);
    of_limits(pid, has_own, &mut found);
    found.sort();
    found.dedup();
    found
}

/// What threads of a VMM have that they may not have.
fn of_threads(pid: u32, users: Option<RangeInclusive<u32>>, wanted: &str) -> Vec<String> {
    each_thread(pid, |thread, found| {
        of_thread(thread, found);
        if let Some(users) = &users {
            of_ids_among(thread, users, found);
        }
        let filters = field(thread, "Seccomp_filters");
        if filters != wanted {
            found.push(format!("Seccomp_filters is {filters}"));
        }
    })
}

/// What is found of the threads of a process, but of those that end meanwhile.
pub fn each_thread(pid: u32, look: impl Fn(&Path, &mut Vec<String>)) -> Vec<String> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs").flatten() {
        let mut found = Vec::new();
        look(&task.path(), &mut found);
        if task.path().join("status").exists() {
            all.append(&mut found);
        }
    }
    all
}

/// What a thread of a confined process may not have, whoever its user is.
pub fn of_thread(thread: &Path, found: &mut Vec<String>) {
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
    let groups = field(thread, "Groups");
    if !groups.is_empty() && !Path::new("/dev/kvm").exists() {
        found.push(format!("Groups are {groups}"));
    }
}

/// Whether a thread has a user and a group as only VMMs and the gateway have them.
pub fn of_ids(thread: &Path, found: &mut Vec<String>) {
    of_ids_among(thread, &USERS, found);
}

fn of_ids_among(thread: &Path, among: &RangeInclusive<u32>, found: &mut Vec<String>) {
    for name in ["Uid", "Gid"] {
        let ids = field(thread, name);
        let in_range = |id: &str| id.parse().is_ok_and(|id| among.contains(&id));
        if !ids.split_whitespace().all(in_range) {
            found.push(format!("{name} is {ids}"));
        }
    }
}

/// The descriptors of a process, counted by what they are: files as it names them, without the
/// names of overlays; the rest by kind.
#[must_use]
pub fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").flatten();
    let mut counts = BTreeMap::new();
    for path in links.filter_map(|entry| fs::read_link(entry.path()).ok()) {
        *counts.entry(kind(&path.to_string_lossy())).or_default() += 1;
    }
    counts
}

/// The descriptors of a VMM that emulates one processor and has no disk, all of them, once its
/// guest uses its devices. A branch of it opens connections that its daemon keeps.
///
/// # Panics
/// If there is no QEMU.
#[must_use]
pub fn golden_descriptors(branched: bool) -> BTreeMap<String, usize> {
    let queues = if *EMULATED_QUEUES_HAVE_EVENTS { QUEUES } else { 0 };
    let counts = [
        ("/dev/null", 1),
        ("/ram", 1),
        ("anon_inode:[eventfd]", EVENTS + queues),
        ("anon_inode:[eventpoll]", 3),
        ("anon_inode:[signalfd]", 1),
        // Those that it listens on, connections of the daemon, and its network device's.
        ("socket", if branched { 14 + OF_A_BRANCH } else { 14 }),
        ("vmm.fifo", 2),
    ];
    counts.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect()
}

/// Of the QEMU that the tests run.
static EMULATED_QUEUES_HAVE_EVENTS: LazyLock<bool> = LazyLock::new(|| {
    let named = std::env::var_os("FORKD_QEMU").map(PathBuf::from);
    let program = named.unwrap_or_else(|| qemu::default_program(Accelerator::Tcg));
    let version = qemu::version(&program).expect("QEMU tells its version");
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= EMULATES_QUEUE_EVENTS
});

fn kind(name: &str) -> String {
    // Standard output of a VMM, which is on the host.
    if name.ends_with("/vmm.fifo") {
        return "vmm.fifo".to_owned();
    }
    if name.starts_with("/disk/overlays/") {
        return "/disk/overlays/".to_owned();
    }
    // Each has a number of its own.
    let numbered = ["socket", "pipe"].into_iter();
    let mut numbered = numbered.filter(|kind| name.starts_with(&format!("{kind}:")));
    numbered.next().unwrap_or(name).to_owned()
}

/// Its root is all that is mounted at `/`: the host's would lie over or below it.
fn of_mounts(pid: u32, found: &mut Vec<String>) {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("the VMM runs");
    let at = |line: &str| line.split(' ').nth(4).map(str::to_owned);
    let roots: Vec<&str> = mounts.lines().filter(|line| at(line).as_deref() == Some("/")).collect();
    if !matches!(roots[..], [root] if root.contains(" - tmpfs ")) {
        found.push(format!("the host's files are mounted: {roots:?}"));
    }
}

fn of_limits(pid: u32, has_own_user: bool, found: &mut Vec<String>) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("the VMM runs");
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
        // Processes are counted for a user, so others would count too where they share one.
        let holds = name != "Max processes" || has_own_user;
        if holds && hard(name).is_none_or(|limit| limit > most) {
            found.push(format!("{name} is {:?}", hard(name)));
        }
    }
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("the VMM runs");
    if score.trim() != "500" {
        found.push(format!("oom_score_adj is {}", score.trim()));
    }
}

/// Each controller that limits a VMM is in a group of its own.
fn of_cgroups(pid: u32, found: &mut Vec<String>) {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the VMM runs");
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

/// A line of a process's or thread's `status`; empty if there is none.
#[must_use]
pub fn field(process: &Path, name: &str) -> String {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
