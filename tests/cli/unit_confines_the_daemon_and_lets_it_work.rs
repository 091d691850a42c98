//! Goal: the systemd unit in `deploy/` is understood by systemd, takes away what its kind of
//! service does not need, and leaves what a session needs.
//!
//! Method: systemd verifies the unit and rates it, and makes its user. A session with templates,
//! limits, branches of two modes and a compaction then runs as the unit would have it, with what
//! needs no service manager: a user of its own with the unit's capabilities, no new privileges, a
//! read-only file system apart from the daemon's directories, devices as the udev rule gives them,
//! cgroups that were delegated, and system calls that are counted and compared with the unit's
//! filter. Root gives the commands. The session does not run under systemd: that the daemon is
//! restarted, `DeviceAllow=`, `RestrictNamespaces=` and what `IPAddressDeny=` does are not shown
//! here. Breaks
//! when the unit lacks something, or the filter a system call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::forkd::Forkd;

/// As `systemd-analyze security` counts it: 0 is confined, 100 is not. The gateway reaches
/// networks.
const EXPOSURE_MAX: &str = "32";
/// QEMU tries the first, SQLite the second; both go on where they are refused, as they are here,
/// whether or not this systemd would.
const DISPENSABLE: [&str; 2] = ["io_uring_setup", "fchown"];
/// Made by what stands for the service manager, as root.
const OF_SETPRIV: [&str; 2] = ["setgroups", "setresuid"];
const SOON: Duration = Duration::from_secs(120);

/// Settings of the unit by name; those that are given more than once in their order.
fn unit() -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(deploy().join("forkd.service")).unwrap();
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for (name, value) in lines.filter_map(|line| line.split_once('=')) {
        settings.entry(name.to_owned()).or_default().push(value.to_owned());
    }
    settings
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    command.output().unwrap_or_else(|error| panic!("{program:?}: {error}; run `make setup`"))
}

fn checked(command: &mut Command) -> String {
    let output = run(command);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn systemd_understands_the_units_and_finds_them_confined() {
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::var("FORKD_BIN").unwrap();
    for name in ["forkd.service", "run-forkd-hot.mount"] {
        let text = std::fs::read_to_string(deploy().join(name)).unwrap();
        // The program must be there.
        let text = text.replace("/usr/local/bin/forkd", &program);
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.current_dir(&directory).args(["verify", "./forkd.service", "./run-forkd-hot.mount"]);
    let said = checked(&mut verify);
    // Older ones do not know this name, and go on without it.
    let strange = said.lines().find(|line| !line.contains("'DelegateSubgroup'"));
    assert_eq!(strange, None);
    let mut rate = Command::new("systemd-analyze");
    rate.current_dir(&directory).args(["security", "--offline=true", "--no-pager"]);
    checked(rate.arg(format!("--threshold={EXPOSURE_MAX}")).arg("./forkd.service"));
    let unit = unit();
    let mut users = Command::new("systemd-sysusers");
    let mut root = std::ffi::OsString::from("--root=");
    root.push(directory.path());
    std::fs::create_dir(directory.path().join("etc")).unwrap();
    checked(users.arg(root).arg(deploy().join("forkd.sysusers")));
    let made = |file: &str| std::fs::read_to_string(directory.path().join("etc").join(file));
    let user = format!("{}:", unit["User"][0]);
    assert!(made("passwd").unwrap().lines().any(|line| line.starts_with(&user)));
    let member = format!(":{}", unit["User"][0]);
    let kvm = format!("{}:", unit["SupplementaryGroups"][0]);
    let groups = made("group").unwrap();
    let is_kvm = |line: &&str| line.starts_with(&kvm);
    assert!(groups.lines().find(is_kvm).unwrap().ends_with(&member), "{groups}");
    // Without these a restart would end sandboxes, or the next daemon would not find them.
    for (name, value) in [
        ("KillMode", "process"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("OOMPolicy", "continue"),
        ("Delegate", "memory cpu pids io"),
        // A host's metadata and its neighbours, whatever a policy says.
        ("IPAddressDeny", "link-local multicast"),
    ] {
        assert_eq!(unit[name], [value], "{name}");
    }
}

/// The system calls that the unit's filter allows.
fn allowed(filters: &[String]) -> BTreeSet<String> {
    let mut allowed = expand("@default");
    for filter in filters {
        let (names, allows) = match filter.strip_prefix('~') {
            Some(names) => (names, false),
            None => (filter.as_str(), true),
        };
        for call in names.split_whitespace().flat_map(expand) {
            if allows {
                allowed.insert(call);
            } else {
                allowed.remove(&call);
            }
        }
    }
    allowed
}

/// The system calls of a group, as systemd has it.
fn expand(name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return BTreeSet::from([name.to_owned()]);
    }
    let listed = checked(Command::new("systemd-analyze").args(["syscall-filter", name]));
    let lines = listed.lines().skip(1).map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).flat_map(expand).collect()
}

/// The number of the user that stands for the unit's: nobody's.
const USER: u32 = 64_321;

/// Everything is read-only but the two directories, and the device is for the user's group; the
/// rest of the line is run there, in the group that was delegated.
const STRICT: &str = r#"
    set -e
    for directory in "$FORKD_HOME" "$FORKD_HOT_DIR"; do
        mount --bind "$directory" "$directory"
    done
    devices=$(mktemp -d "$FORKD_HOME/devices-XXXX")
    mount -t tmpfs -o mode=0755 tmpfs "$devices"
    cp -a /dev/userfaultfd "$devices"
    chgrp "$UNIT_USER" "$devices/userfaultfd"
    chmod "$DEVICE_MODE" "$devices/userfaultfd"
    mount --bind "$devices/userfaultfd" /dev/userfaultfd
    echo $$ > "$UNIT_CGROUP/cgroup.procs"
    mount -o remount,bind,ro /
    mount -o remount,bind,ro /sys
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    exec "$@"
"#;

/// The mode that the udev rule gives to the device, for the unit's group.
fn device_mode(unit: &BTreeMap<String, Vec<String>>) -> String {
    let rules = std::fs::read_to_string(deploy().join("60-forkd.rules")).unwrap();
    let rule = rules.lines().find(|line| line.starts_with("KERNEL==\"userfaultfd\"")).unwrap();
    assert!(rule.contains(&format!("GROUP=\"{}\"", unit["Group"][0])), "{rule}");
    let (_, mode) = rule.split_once("MODE=\"").unwrap();
    mode.trim_end_matches('"').to_owned()
}

/// A cgroup for the unit's user, as `Delegate=` and `DelegateSubgroup=` give one.
struct Delegated {
    unit: PathBuf,
    /// Where the daemon begins.
    daemon: PathBuf,
}

impl Delegated {
    fn new() -> Self {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = groups.lines().find_map(|line| line.split_once(":memory:").map(|(_, own)| own));
        let name = format!("forkd-unit-{}", std::process::id());
        let made = |path: PathBuf| {
            std::fs::create_dir(&path).unwrap();
            for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
                let file = path.join(file);
                if file.exists() {
                    std::os::unix::fs::chown(file, Some(USER), Some(USER)).unwrap();
                }
            }
            path
        };
        match own {
            Some(own) => {
                let unit = made(Path::new("/sys/fs/cgroup/memory").join(&own[1..]).join(name));
                Self { daemon: unit.clone(), unit }
            }
            None => {
                let unit = made(Path::new("/sys/fs/cgroup").join(name));
                Self { daemon: made(unit.join("daemon")), unit }
            }
        }
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for group in [&self.daemon, &self.unit] {
            // One and the same with version 1; those of VMMs have gone with them.
            std::fs::remove_dir(group).ok();
        }
        assert!(!self.unit.exists() || std::thread::panicking(), "{}", self.unit.display());
    }
}

/// Gives the unit's user the daemon's directories, as the service manager does.
fn hand_over(forkd: &Forkd) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(forkd.home(), mode).unwrap();
    for name in ["run", "state"] {
        std::fs::create_dir(forkd.home().join(name)).unwrap();
    }
    for directory in [&forkd.home().join("run"), &forkd.home().join("state"), forkd.hot()] {
        std::os::unix::fs::chown(directory, Some(USER), Some(USER)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory, mode).unwrap();
    }
}

/// The daemon as the unit runs it; its system calls are counted in `counts`.
fn daemon(
    forkd: &Forkd,
    unit: &BTreeMap<String, Vec<String>>,
    group: &Path,
    counts: &Path,
) -> Command {
    assert_eq!((&*unit["ProtectSystem"][0], &*unit["NoNewPrivileges"][0]), ("strict", "yes"));
    let capabilities = unit["CapabilityBoundingSet"][0].to_lowercase();
    let bounding = capabilities.split_whitespace().fold("-all".to_owned(), |set, name| {
        format!("{set},+{}", name.strip_prefix("cap_").unwrap())
    });
    let refused = DISPENSABLE.join(",");
    let mut command = forkd.within(Command::new("unshare"));
    let user = USER.to_string();
    command.env("UNIT_USER", &user).env("DEVICE_MODE", device_mode(unit));
    command.env("UNIT_CGROUP", group);
    let variables = unit["Environment"].iter().filter_map(|line| line.split_once('='));
    // The daemon has directories of its own here.
    command.envs(variables.filter(|(name, _)| !name.ends_with("_DIR") && !name.contains("XDG_")));
    command.args(["--mount", "sh", "-c", STRICT, "sh"]);
    command.args(["strace", "-f", "-qq", "-c", "-S", "name", "-o"]).arg(counts);
    command.args(["-e", &format!("inject={refused}:error=EPERM")]);
    command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["--no-new-privs", "--inh-caps=-all", "--bounding-set", &bounding]);
    command.arg("--").arg(forkd.command(&[]).get_program()).arg("serve");
    command
}

/// Everything that needs the kernel in another way.
fn session(forkd: &Forkd) {
    forkd.ok(&["template", "build", "python", "--tag", "t", "--mem-size-mib", "256"]);
    let sandbox = forkd.ok(&["fork", "t", "--memory-limit-mib", "900"]);
    let shown = forkd.json(&["info", &sandbox]);
    assert_eq!(shown["isolation"], "namespaces", "{shown}");
    forkd.ok(&["exec", &sandbox, "--", "sh", "-c", "echo kept > /srv/kept; sync"]);
    let live = forkd.json(&["branch", &sandbox, "--mode", "live", "-n", "1"]);
    let child = live["children"][0]["sandbox"]["id"].as_str().unwrap();
    assert_eq!(forkd.ok(&["exec", child, "--", "cat", "/srv/kept"]), "kept");
    forkd.ok(&["branch", &sandbox, "--mode", "diff", "--tag", "later"]);
    forkd.ok(&["snapshot", "compact", "later", "--to", "alone"]);
    let alone = forkd.ok(&["fork", "alone"]);
    assert_eq!(forkd.ok(&["eval", &alone, "6 * 7"]), "42");
    forkd.ok(&["stop", "--stop-sandboxes"]);
}

#[test]
fn a_session_needs_nothing_that_the_unit_takes_away() {
    let (forkd, unit) = (Forkd::new(), unit());
    let counts = forkd.home().join("counts");
    let log = std::fs::File::create(forkd.home().join("log")).unwrap();
    let group = Delegated::new();
    hand_over(&forkd);
    let (error, code) = forkd.refused(&["ls"]);
    assert!(code == 3 && error.contains("systemctl start forkd"), "not started by root: {error}");
    let mut daemon = daemon(&forkd, &unit, &group.daemon, &counts);
    daemon.stderr(log).stdin(Stdio::null());
    let mut daemon = daemon.spawn().expect("unshare; run `make setup`");
    let begun = Instant::now();
    while !forkd.home().join("run/forkd.sock").exists() {
        let said = || std::fs::read_to_string(forkd.home().join("log")).unwrap();
        assert_eq!(daemon.try_wait().unwrap(), None, "{}", said());
        assert!(begun.elapsed() < SOON, "the daemon does not listen: {}", said());
        std::thread::sleep(Duration::from_millis(5));
    }
    session(&forkd);
    // Counts are written when the last process has ended.
    daemon.wait().unwrap();
    let counts = std::fs::read_to_string(&counts).unwrap();
    // Share of the time, seconds, ..., name; besides that strace tells of processes.
    let is_row = |row: &&str| {
        let mut cells = row.split_whitespace().take(2).map(str::parse::<f64>);
        cells.next().is_some_and(|cell| cell.is_ok()) && cells.next().is_some_and(|c| c.is_ok())
    };
    let names = counts.lines().filter(is_row).filter_map(|row| row.split_whitespace().last());
    let made: BTreeSet<&str> = names.filter(|name| *name != "total").collect();
    for expected in ["process_vm_readv", "sched_setattr", "pwrite64"] {
        assert!(made.contains(expected), "{expected} was not counted: {made:?}");
    }
    let allowed = allowed(&unit["SystemCallFilter"]);
    let refused: Vec<_> = made
        .into_iter()
        .filter(|call| !DISPENSABLE.contains(call) && !OF_SETPRIV.contains(call))
        .filter(|call| !allowed.contains(*call))
        .collect();
    assert_eq!(refused, Vec::<&str>::new(), "the unit's filter refuses what a session needs");
}
