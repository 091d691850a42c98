//! Goal: a sandbox that was asked for with a memory limit and a network namespace of its own has
//! both from its start to its end, whichever daemon owns it; its children have the same limits, and
//! network namespaces of their own; all of them look confined from outside as long as they live;
//! and where the host permits neither, nothing is started and the remedy is told.
//!
//! Method: the kernel's own word on processes, groups and namespaces, before and after the daemon
//! is killed, and after a VMM has met its limit with a daemon and without one; a daemon whose
//! cgroups are mounted read-only and which has no CAP_SYS_ADMIN. Breaks when a limit is only
//! shown, is lost with the daemon, or a group or namespace outlives its sandbox.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forkd_testkit::audit;
use forkd_types::Isolation;
use serde_json::Value;

use crate::forkd::Forkd;
use crate::processes::{kill_daemon, runs, wait_until};

const LIMIT: &str = "memory limit of 96 MiB";
/// More than the limit leaves to the guest.
const FILL: &str = "dd if=/dev/zero of=/tmp/fill bs=1M count=90 2> /dev/null";

const BUILD: [&str; 7] = ["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "256"];

fn text(sandbox: &Value, field: &str) -> String {
    sandbox[field].as_str().unwrap_or_else(|| panic!("{field} in {sandbox}")).to_owned()
}

/// The namespace behind a path such as `/proc/1/ns/net`.
fn namespace(path: &str) -> PathBuf {
    std::fs::read_link(path).unwrap()
}

/// All VMMs look confined from outside, and none has a descriptor too many.
fn look_confined(forkd: &Forkd, vmms: &[&Value]) {
    let golden = audit::golden_descriptors(false);
    let pid = |sandbox: &Value| u32::try_from(sandbox["pid"].as_u64().unwrap()).unwrap();
    for vmm in vmms {
        let siblings = vmms.iter().filter(|other| pid(other) != pid(vmm));
        let mut others: Vec<u32> = siblings.map(|other| pid(other)).collect();
        others.push(forkd.daemon_pid());
        let found = audit::violations(pid(vmm), &others, Isolation::Full);
        assert!(found.is_empty(), "{vmm}: {found:#?}");
        let open = || audit::descriptors(pid(vmm));
        wait_until(&format!("{golden:?} instead of {:?}", open()), || open() == golden);
    }
}

/// The VMMs in a namespace. Its number may mean another one by now, of another test.
fn vmms_in(forkd: &Forkd, namespace: &Path) -> usize {
    let home = forkd.home().to_str().unwrap();
    let is_there = |process: &Path| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(home)
            && std::fs::read_link(process.join("ns/net")).is_ok_and(|network| network == namespace)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| is_there(&entry.path())).count()
}

/// The directory of a VMM's cgroup, which goes by its sandbox's name.
fn group(sandbox: &Value) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", sandbox["pid"])).unwrap();
    let id = text(sandbox, "id");
    let has_memory = |line: &&str| line.contains(":memory:") || line.starts_with("0::");
    let line = groups.lines().filter(has_memory).find(|line| line.ends_with(&id));
    let path = line.and_then(|line| line.splitn(3, ':').nth(2));
    let path = path.unwrap_or_else(|| panic!("{id} has no group: {groups}"));
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(|root| format!("{root}{path}"));
    roots.into_iter().map(PathBuf::from).find(|path| path.is_dir()).unwrap()
}

fn shown(forkd: &Forkd, id: &str) -> Value {
    let list = forkd.json(&["ls"]);
    list.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap().clone()
}

#[test]
fn limits_and_namespaces_outlive_the_daemon_and_go_with_the_sandbox() {
    let forkd = Forkd::new();
    forkd.ok(&BUILD);
    let asked = ["fork", "t", "-n", "2", "--memory-limit-mib", "96", "--per-child-netns"];
    let started = forkd.json(&asked);
    let [first, second] = [0, 1].map(|number| started[number].clone());
    let networks = [&first, &second].map(|one| namespace(&text(one, "netns")));
    let of_daemon = namespace(&format!("/proc/{}/ns/net", forkd.daemon_pid()));
    assert!(networks[0] != networks[1] && !networks.contains(&of_daemon), "{networks:?}");
    let groups = [&first, &second].map(group);
    for one in [&first, &second] {
        assert_eq!(one["memory_limit_mib"], 96);
    }
    look_confined(&forkd, &[&first, &second]);
    let branch = forkd.json(&["branch", &text(&first, "id"), "-n", "1", "--tag", "b"]);
    let child = &branch["children"][0]["sandbox"];
    assert_eq!(child["memory_limit_mib"], 96, "limits are inherited");
    let (error, _) = forkd.refused(&["fork", "b", "--memory-limit-mib", "97"]);
    assert!(error.contains("97.0 MiB is more than 96.0 MiB of the sandbox"), "{error}");
    let of_child = namespace(&text(child, "netns"));
    assert!(of_child != of_daemon && !networks.contains(&of_child), "{networks:?}");

    kill_daemon(&forkd);
    let (id, other) = (text(&first, "id"), text(&second, "id"));
    for (before, network) in [(&first, &networks[0]), (&second, &networks[1])] {
        let after = shown(&forkd, &text(before, "id"));
        assert_eq!(after["memory_limit_mib"], 96);
        assert_eq!(after["netns"], before["netns"]);
        assert_eq!(&namespace(&text(&after, "netns")), network);
    }
    look_confined(&forkd, &[&first, &second, child]);
    let (error, _) = forkd.refused(&["exec", &id, "--", "/bin/sh", "-c", FILL]);
    assert!(error.contains(LIMIT) && error.contains("docs/limits.md"), "{error}");
    let dead = shown(&forkd, &id);
    assert!(text(&dead, "error").contains(LIMIT), "{dead}");
    assert_eq!((&dead["state"], &dead["netns"]), (&"dead".into(), &Value::Null));
    wait_until("the group goes with its VMM", || !groups[0].exists());

    // The limit is met while no daemon runs.
    let later = format!("setsid sh -c 'sleep 1; {FILL}' < /dev/null > /dev/null 2>&1 &");
    forkd.ok(&["exec", &other, "--", "/bin/sh", "-c", &later]);
    kill_daemon(&forkd);
    wait_until("the VMM is ended", || !runs(second["pid"].as_u64().unwrap()));
    assert!(groups[1].exists(), "it tells the next daemon why");
    assert!(text(&shown(&forkd, &other), "error").contains(LIMIT));
    assert!(!groups[1].exists(), "swept");
    for network in &networks {
        assert_eq!(vmms_in(&forkd, network), 0, "a namespace goes with its VMM");
    }
    assert!(forkd.ok(&["exec", &text(child, "id"), "--", "echo", "goes on"]).contains("goes on"));
}

/// A program in front of the daemon's that takes away what confinement needs.
const WITHOUT: &str = r#"
    for mount in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        if mountpoint -q "$mount"; then mount -o remount,bind,ro "$mount"; fi
    done
    exec setpriv --inh-caps=-sys_admin --bounding-set=-sys_admin "$@"
"#;

/// The command line where the host permits no confinement.
fn without_permission(forkd: &Forkd, args: &[&str]) -> Command {
    let mut command = forkd.within(Command::new("unshare"));
    command.args(["--mount", "sh", "-c", WITHOUT, "sh"]);
    command.arg(forkd.command(&[]).get_program()).args(args);
    command
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        self.0.kill().ok();
        self.0.wait().unwrap();
    }
}

#[test]
fn nothing_is_started_without_the_confinement_that_was_asked_for() {
    let forkd = Forkd::new();
    let mut serve = without_permission(&forkd, &["serve"]);
    let log = std::fs::File::create(forkd.home().join("log")).unwrap();
    let daemon = Daemon(serve.stderr(log).stdin(Stdio::null()).spawn().unwrap());
    wait_until("the daemon listens", || forkd.home().join("run/forkd.sock").exists());
    forkd.ok(&BUILD);
    assert_eq!(u64::from(forkd.daemon_pid()), u64::from(daemon.0.id()));
    for (options, words) in [
        (&["--memory-limit-mib", "96"][..], ["memory_limit_mib: ", "deploy/", "cannot be written"]),
        (&["--per-child-netns"], ["per_child_netns: ", "CAP_SYS_ADMIN", "not permitted"]),
    ] {
        let (error, code) = forkd.refused(&[&["fork", "t"], options].concat());
        assert_eq!(code, 1);
        for words in words {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
    let (error, _) = forkd.refused(&["fork", "t", "--memory-limit-mib", "63"]);
    assert!(error.contains("memory_limit_mib: 63 is not within 64"), "{error}");
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0);
    // Who asks for neither gets a sandbox all the same.
    forkd.ok(&["fork", "t"]);
    forkd.ok(&["stop", "--stop-sandboxes"]);

    // Nobody must have either: doctor warns, and says that forkd works.
    let mut doctor = without_permission(&forkd, &["doctor", "--json"]);
    let output = doctor.output().unwrap();
    let checks: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = |name: &str| {
        let found = checks.as_array().unwrap().iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {checks}")).clone()
    };
    assert_eq!(check("guest")["outcome"], "ok", "{checks}");
    for name in ["limits of VMMs", "namespaces"] {
        let check = check(name);
        assert!(check["outcome"] == "warn" && check["remedy"].is_string(), "{check}");
    }
    let verdict = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(verdict.contains("forkd works here, with warnings: "), "{verdict}");
    assert_eq!(output.status.code(), Some(0));
}
