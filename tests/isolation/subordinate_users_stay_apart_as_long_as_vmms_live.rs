//! Goal: where an ordinary user's daemon was given ids, each VMM has a user and a group that no
//! other process has, and nobody but itself and the daemon reaches its files, as long as it lives:
//! after a branch, a rollback, and when another daemon has taken it over from one that was killed.
//! All that a daemon does with a VMM, it can do with one of these.
//! Method: `/proc` from outside. Files are opened in the place of each user: from where they are
//! nobody can, and by a name for them in an open directory the VMM's own user alone. The guest's
//! disk is read back after each step.
//! Broken by: an id that two sandboxes get, a file that is not lent or not taken back, something
//! that the daemon opens as the user that it is not.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_testkit::audit::{field, violations_among};
use forkd_testkit::gateway_in;

use crate::ordinary_user::{Given, OrdinaryDaemon, SUBORDINATE};

/// Reaches for what no policy permits.
const REFUSED: &str = "python3 -c 'import socket; \
    socket.create_connection((\"169.254.169.254\", 80))' || true";

/// The user and the group of a process.
fn ids(pid: u32) -> [u32; 2] {
    let process = PathBuf::from(format!("/proc/{pid}"));
    ["Uid", "Gid"].map(|name| {
        let ids = field(&process, name);
        ids.split_whitespace().next().unwrap().parse().unwrap()
    })
}

/// Each of these sandboxes has a VMM with a user of its own, and answers. Gives the users.
fn all_hold(daemon: &OrdinaryDaemon, when: &str, sandboxes: &[String]) -> BTreeSet<u32> {
    let vmms: Vec<u32> = sandboxes.iter().map(|id| daemon.vmm(id)).collect();
    for (id, pid) in sandboxes.iter().zip(&vmms) {
        let mut others: Vec<u32> = vmms.iter().copied().filter(|other| other != pid).collect();
        others.extend([daemon.pid(), std::process::id()]);
        let found = violations_among(*pid, &others, SUBORDINATE);
        assert!(found.is_empty(), "{when}, {id}: {found:#?}");
        assert_eq!(daemon.ok(&["exec", id, "--", "cat", "/root/kept"]), "kept", "{when}, {id}");
    }
    let users: BTreeSet<u32> = vmms.iter().map(|pid| ids(*pid)[0]).collect();
    assert_eq!(users.len(), sandboxes.len(), "{when}");
    let gateway = gateway_in(&daemon.run()).unwrap().as_raw_nonzero().get();
    let [user, group] = ids(u32::try_from(gateway).unwrap());
    assert!(SUBORDINATE.contains(&user) && SUBORDINATE.contains(&group), "{when}: {user}");
    assert!(!users.contains(&user), "{when}: the gateway has the user of a VMM");
    users
}

/// Branches while the guest runs, where the host can.
fn branch(daemon: &OrdinaryDaemon, id: &str, tag: &str) {
    let mode = if Path::new("/dev/userfaultfd").exists() { "live" } else { "diff" };
    daemon.ok(&["branch", id, "--tag", tag, "--mode", mode]);
}

/// Whether a process with these ids alone can write the file.
fn can_write([user, group]: [u32; 2], path: &Path) -> bool {
    let (user, group) = (user.to_string(), group.to_string());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &group, "--clear-groups", "--inh-caps=-all"]);
    command.args(["--", "sh", "-c", r#"exec 3<>"$0""#]).arg(path);
    command.output().unwrap().status.success()
}

/// The overlays of a sandbox, with their modes.
fn overlays(daemon: &OrdinaryDaemon, id: &str) -> Vec<(PathBuf, u32)> {
    let links = daemon.state().join("vms").join(id);
    let entries = fs::read_dir(&links).unwrap_or_else(|error| panic!("{links:?}: {error}"));
    let found = entries.flatten().map(|entry| {
        let path = daemon.state().join("overlays").join(entry.file_name());
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        (path, mode)
    });
    found.collect()
}

/// What a VMM writes is the daemon's and lent to its group; what it has written is nobody's to
/// write. Neither its own user nor others get there.
fn files_are_out_of_reach(daemon: &OrdinaryDaemon, id: &str, sibling: &str) {
    let [own, other] = [id, sibling].map(|id| ids(daemon.vmm(id)));
    let [user, group] = ids(daemon.pid());
    let overlays = overlays(daemon, id);
    let (lent, frozen): (Vec<_>, Vec<_>) = overlays.iter().partition(|(_, mode)| *mode == 0o660);
    assert!(!frozen.is_empty() && frozen.iter().all(|(_, mode)| *mode == 0o444), "{overlays:?}");
    // The top, and the one for the next branch.
    assert!((1..=2).contains(&lent.len()), "{overlays:?}");
    for (path, _) in lent {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!([metadata.uid(), metadata.gid()], [user, own[1]], "{}", path.display());
        for ids in [own, other, [user + 1, group + 1]] {
            assert!(!can_write(ids, path), "{ids:?} {}", path.display());
        }
        let open = daemon.open_directory().join("open.qcow2");
        fs::hard_link(path, &open).unwrap();
        let reaches = [own, other, [user + 1, group + 1]].map(|ids| can_write(ids, &open));
        fs::remove_file(&open).unwrap();
        assert_eq!(reaches, [true, false, false], "the VMM, its sibling, another user");
    }
}

#[test]
fn vmms_with_subordinate_users_stay_apart_over_branch_rollback_and_a_killed_daemon() {
    let mut daemon = OrdinaryDaemon::start("required", Given::Ids);
    daemon.template_of("python", 256);
    let source = daemon.ok(&["fork", "python"]);
    daemon.ok(&["exec", &source, "--", "sh", "-c", "echo kept > /root/kept && sync"]);
    branch(&daemon, &source, "first");
    let mut all = vec![source.clone()];
    let fork = |daemon: &OrdinaryDaemon, tag: &str, count: &str| -> Vec<String> {
        daemon.ok(&["fork", tag, "-n", count]).lines().map(str::to_owned).collect()
    };
    all.extend(fork(&daemon, "first", "2"));
    let before = all_hold(&daemon, "after a branch", &all);
    files_are_out_of_reach(&daemon, &source, &all[1]);

    daemon.ok(&["exec", &source, "--", "rm", "/root/kept"]);
    daemon.ok(&["rollback", &source, "first"]);
    assert_eq!(all_hold(&daemon, "after a rollback", &all), before);

    daemon.replace_after_kill();
    assert_eq!(all_hold(&daemon, "after the daemon was killed", &all), before);
    // Memory and disk of one that was taken over are captured, and its files are lent by another
    // launcher than before.
    let child = all[1].clone();
    for (id, tag) in [(&source, "second"), (&source, "third"), (&child, "fourth")] {
        branch(&daemon, id, tag);
        all.extend(fork(&daemon, tag, "1"));
    }
    all_hold(&daemon, "after branches of what was taken over", &all);
    files_are_out_of_reach(&daemon, &source, &all[1]);

    // `qemu-img` reads disks as a user that is no VMM's.
    daemon.ok(&["snapshot", "compact", "third", "--to", "compact"]);
    let compact = fork(&daemon, "compact", "1");
    all_hold(&daemon, "with a snapshot that stands alone", &compact);
    // The gateway's logs are the daemon's to read and to remove.
    daemon.ok(&["exec", &source, "--", "sh", "-c", REFUSED]);
    let log = daemon.ok(&["network", "log", &source]);
    assert!(log.contains("169.254.169.254"), "{log}");
    let pid = daemon.vmm(&source);
    daemon.ok(&["rm", &source]);
    // Whoever is its parent now may not have waited for it yet.
    assert!(fs::read_link(format!("/proc/{pid}/exe")).is_err(), "it runs on");
    assert!(!daemon.run().join("netd/logs").join(&source).exists(), "its log is left");
}
