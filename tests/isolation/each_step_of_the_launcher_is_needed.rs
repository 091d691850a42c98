//! Goal: no step of the launcher could be left out unseen.
//! Method: launchers that leave out one step each; what is seen from outside, or what the VMM
//! itself finds, then differs from what it must be, or no VMM starts.
//! The step `no_new_privileges` is tried by the launcher's own test: the filters set it once more.
//! Broken by: a step that does nothing, or an audit that looks at nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Lab, block_on};

use crate::audit::violations;
use crate::prisoner::{Attempt, attempt, lab, pid};

/// Each step, and a word of what shows that it is missing.
const STEPS: [(&str, &str); 9] = [
    ("cgroups", "cgroup"),
    ("oom_score", "oom_score_adj"),
    ("namespaces", "net namespace"),
    ("root", "the host's files are seen"),
    ("host_name", "the host's name is seen"),
    ("limits", "Max processes"),
    ("ids", "Uid"),
    ("user_namespace", "user namespace"),
    ("capabilities", "CapBnd"),
];

/// A launcher that leaves out `step`.
fn launcher_without(step: &str, directory: &Path, real: &Path) -> PathBuf {
    let path = directory.join(format!("without-{step}"));
    let script = format!("#!/bin/sh\nexec '{}' --without {step}\n", real.display());
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// What is not as it must be, seen from outside and from inside.
async fn problems(lab: &Lab) -> Vec<String> {
    let tag = "probe".parse().unwrap();
    if let Err(error) = lab.build(&tag, "tiny", 128).await {
        return vec![format!("no VMM starts: {error:?}")];
    }
    let guest = lab.one(&tag).await;
    let mut found = violations(pid(lab, &guest), &[std::process::id()]);
    if attempt(lab, &guest, "list", ".") != attempt(lab, &guest, "list", "/") {
        found.push("the host's files are seen".to_owned());
    }
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    if attempt(lab, &guest, "host_name", "") == Attempt::Worked(name.trim().to_owned()) {
        found.push("the host's name is seen".to_owned());
    }
    // The library keeps a layer open on purpose.
    found.retain(|problem| !problem.contains("/layers/ly-"));
    guest.remove().await;
    found
}

#[test]
fn without_any_one_step_a_violation_shows_or_no_vmm_starts() {
    block_on(async {
        let scripts = tempfile::tempdir().unwrap();
        let complete = lab(IsolationPolicy::Required, None).await;
        let real = complete.config().launcher.clone();
        let found = problems(&complete).await;
        assert!(found.is_empty(), "with all steps: {found:#?}");
        for (step, word) in STEPS {
            let launcher = launcher_without(step, scripts.path(), &real);
            let lab = lab(IsolationPolicy::Required, Some(&launcher)).await;
            let found = problems(&lab).await;
            let shows = |problem: &String| problem.contains(word) || problem.contains("no VMM");
            assert!(found.iter().any(shows), "without {step}: {found:#?}");
        }
    });
}
