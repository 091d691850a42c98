//! Goal: VMMs that stand by go, with all their files, when their daemon stops; and when it is
//! killed, the next one ends them and keeps the sandboxes. `top` and `doctor` show them.
//! Method: the processes and directories that are there before and after a kill and a stop.
//! Broken by: a VMM that nobody knows of after a crash, files that stay.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use crate::forkd::Forkd;
use crate::processes::{kill_daemon, wait_until};

/// Directories of VMs below `directory`, by the ids of their sandboxes.
fn directories(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("sb-")).collect()
}

fn overlays(forkd: &Forkd) -> usize {
    let entries = std::fs::read_dir(forkd.home().join("state/overlays")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("blank-")).count()
}

/// Processes with this daemon's run directory on their command line.
fn vmms(forkd: &Forkd) -> BTreeSet<i32> {
    let ours = forkd.home().join("run/sb-").to_string_lossy().into_owned().into_bytes();
    let is_ours = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(ours.len()).any(|part| part == ours)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_ours).collect()
}

#[test]
fn standby_vmms_go_with_their_daemon_and_sandboxes_do_not() {
    let forkd = Forkd::with_variables(&[("FORKD_STANDBY", "2")]);
    forkd.template("python", "t", 256);
    let id = forkd.ok(&["fork", "t", "-q"]);
    wait_until("two VMMs stand by", || vmms(&forkd).len() == 3);
    let places = || [forkd.home().join("run"), forkd.hot().join("vms")].map(|at| directories(&at));
    wait_until("they have directories", || places().iter().all(|there| there.len() == 3));
    // That of the template, of the sandbox, and of each that stands by.
    wait_until("they have overlays", || overlays(&forkd) == 4);
    let standby = || forkd.json(&["top"])["standby"].take();
    wait_until("top shows both", || standby()["status"] == "full");
    let kind = json!({ "image": "python", "mem_size_mib": 256, "vcpus": 1, "count": 2 });
    assert_eq!(standby()["vmms"], json!([kind]));
    let line = "standby         2 of 2: 2 python with 256 MiB and 1 vCPU";
    let checks = forkd.ok(&["doctor"]);
    assert!(checks.contains(line), "{checks}");

    kill_daemon(&forkd);
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 1);
    wait_until("the next daemon ends them", || vmms(&forkd).len() == 1);
    let only = BTreeSet::from([id.clone()]);
    assert_eq!(places(), [only.clone(), only]);
    assert_eq!(overlays(&forkd), 2);
    assert_eq!(forkd.ok(&["exec", &id, "--", "echo", "goes on"]), "goes on");

    forkd.ok(&["fork", "t", "-q"]);
    wait_until("two VMMs stand by again", || vmms(&forkd).len() == 4);
    forkd.ok(&["stop", "--remove-sandboxes"]);
    assert_eq!(vmms(&forkd), BTreeSet::new());
    assert_eq!(places(), [BTreeSet::new(), BTreeSet::new()]);
    assert_eq!(overlays(&forkd), 1);
}
