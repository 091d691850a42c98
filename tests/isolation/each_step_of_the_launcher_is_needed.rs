//! Goal: no step of the launcher could be left out unseen, and neither of the two filters.
//! Method: launchers that leave out one each; what is seen from outside, or what the VMM itself
//! finds, then differs from what it must be, or no VMM starts. What two of them give is left out
//! with both.
//! What a VMM cannot show, because it has no network and may make no socket, is shown by the
//! launcher's own test: that a program reaches no abstract socket of the host.
//! Broken by: a step that does nothing, or an audit that looks at nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use forkd_engine::{EngineError, ImportRequest, IsolationPolicy, Trust};
use forkd_testkit::audit::violations;
use forkd_testkit::{Guest, Lab, block_on, template_file};
use forkd_types::{Isolation, SnapshotTag};

use crate::prisoner::{Attempt, attempt, lab, pid};

/// Numbers of system calls on x86-64.
const SOCKET: &str = "41";
const MOUNT: &str = "165";

/// What is left out, and what shows that it is missing.
const LEFT_OUT: [(&[&str], &str); 16] = [
    (&["cgroups"], "cgroup"),
    (&["oom_score"], "oom_score_adj"),
    (&["namespaces"], "net namespace"),
    (&["mounts"], "no VMM starts"),
    // Nobody can make a user namespace who can see files beyond its root.
    (&["root"], "create a user namespace"),
    (&["root", "user_namespace", "capabilities"], "the host's files are mounted"),
    (&["host_name"], "the host's name is seen"),
    (&["limits"], "Max processes"),
    // Its files belong to the user that it should have been.
    (&["ids"], "/ram for guest RAM: Permission denied"),
    (&["ids", "user_namespace", "capabilities"], "Uid is"),
    // It gives the right to give up capabilities.
    (&["user_namespace"], "give up capabilities"),
    (&["user_namespace", "capabilities"], "user namespace"),
    (&["capabilities"], "CapBnd"),
    (&["allow_list"], "`socket` is allowed"),
    (&["qemu_sandbox"], "`mount` is survived"),
    // Whoever sets a filter, or leaves abstract sockets, gives up new privileges once more.
    (&["no_new_privileges", "abstract_sockets", "allow_list", "qemu_sandbox"], "NoNewPrivs"),
];

/// A launcher that leaves out these.
fn launcher_without(left_out: &[&str], directory: &Path, real: &Path) -> PathBuf {
    let path = directory.join(format!("without-{}", left_out.join("-")));
    let options = left_out.join(" --without ");
    let script = format!("#!/bin/sh\nexec '{}' --without {options}\n", real.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A sandbox of the image `tiny`, which the VMM of its template has booted, or the test run's.
async fn start(lab: &Lab) -> Result<Guest<'_>, EngineError> {
    let tag: SnapshotTag = "probe".parse().unwrap();
    match template_file("tiny", 128) {
        Some(file) => {
            let request = ImportRequest { tag: Some(tag.clone()), trust: Trust::Once };
            lab.engine.import_snapshot(request, fs::File::open(file).unwrap()).await?;
        }
        None => {
            lab.build(&tag, "tiny", 128).await?;
        }
    }
    let mut started = lab.engine.fork(&tag, 1).await?;
    Ok(Guest::new(lab, started.remove(0).id))
}

/// What is not as it must be, seen from outside and from inside.
async fn problems(lab: &Lab) -> Vec<String> {
    let guest = match start(lab).await {
        Ok(guest) => guest,
        Err(error) => return vec![format!("no VMM starts: {error:?}")],
    };
    let mut found = violations(pid(lab, &guest), &[std::process::id()], Isolation::Full);
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    if attempt(lab, &guest, "host_name", "") == Attempt::Worked(name.trim().to_owned()) {
        found.push("the host's name is seen".to_owned());
    }
    // Refused by the allow-list alone.
    if matches!(attempt(lab, &guest, "system_call", SOCKET), Attempt::Worked(_)) {
        found.push("`socket` is allowed".to_owned());
    }
    // Both filters refuse it; QEMU's ends who tries.
    if attempt(lab, &guest, "system_call", MOUNT) != Attempt::Ended {
        found.push("`mount` is survived".to_owned());
    }
    guest.remove().await;
    found
}

#[test]
fn without_any_one_step_or_filter_it_shows() {
    block_on(async {
        let scripts = tempfile::tempdir().unwrap();
        let complete = lab(IsolationPolicy::Required, None).await;
        let real = complete.config().launcher.clone();
        let found = problems(&complete).await;
        assert!(found.is_empty(), "with all steps: {found:#?}");
        for (left_out, word) in LEFT_OUT {
            let launcher = launcher_without(left_out, scripts.path(), &real);
            let lab = lab(IsolationPolicy::Required, Some(&launcher)).await;
            let found = problems(&lab).await;
            let shows = found.iter().any(|problem| problem.contains(word));
            assert!(shows, "without {left_out:?}: {found:#?}");
        }
    });
}
