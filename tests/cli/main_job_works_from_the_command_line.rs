//! Goal: template, fork, branch, exec, cp and rm work from the command line; the daemon starts by
//! itself and stops when told; errors name the thing, carry a hint, and give the documented exit
//! codes.
//!
//! Method: the released binary with a home of its own, as a user would call it. Breaks when a verb
//! and the API disagree, or when anything but data reaches standard output under `--json`.

use crate::forkd::Forkd;

#[test]
fn template_fork_branch_exec_cp_and_rm_from_the_command_line() {
    let mut forkd = Forkd::new();
    forkd.ok(&["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "128"]);
    forkd.hold_to_contract();
    let source = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    forkd.ok(&["exec", &source, "--", "/bin/sh", "-c", "echo kept > /tmp/file"]);

    let branch = forkd.json(&["branch", &source, "--tag", "b", "-n", "2"]);
    assert_eq!(branch["status"], "ready");
    let pause = branch["pause_ms"].as_f64().unwrap();
    assert!(pause > 0.0 && branch["phases_ms"]["freeze_disk"].is_number(), "{branch}");
    let children = branch["children"].as_array().unwrap();
    assert_eq!(children.len(), 2);
    for child in children {
        let id = child["sandbox"]["id"].as_str().unwrap();
        assert_eq!(forkd.ok(&["exec", id, "--", "cat", "/tmp/file"]), "kept");
    }

    let compacted = forkd.json(&["snapshot", "compact", "b", "--to", "alone"]);
    assert_eq!(compacted["status"], "ready");
    assert!(compacted.get("parent_tag").is_none(), "{compacted}");
    let child = forkd.json(&["fork", "alone"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(forkd.ok(&["exec", &child, "--", "cat", "/tmp/file"]), "kept");
    let (errors, code) = forkd.refused(&["snapshot", "compact", "b", "--to", "alone"]);
    assert!(errors.contains("alone") && errors.contains("hint:") && code == 1, "{errors}");

    let local = forkd.home().join("copied");
    let remote = format!("{source}:/tmp/file");
    forkd.ok(&["cp", &remote, local.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&local).unwrap(), "kept\n");

    let (errors, code) = forkd.refused(&["exec", &source, "--", "/bin/sh", "-c", "exit 7"]);
    assert_eq!((errors.as_str(), code), ("", 7), "the command's exit code is ours");

    let (errors, _) = forkd.refused(&["snapshot", "rm", "t"]);
    assert!(errors.contains(&source) && errors.contains("hint:"), "{errors}");
    forkd.ok(&["rm", "--all"]);
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0);
    forkd.ok(&["snapshot", "rm", "t", "--cascade"]);
    assert_eq!(forkd.json(&["snapshots"])[0]["tag"], "alone", "it depends on no other");
    forkd.ok(&["snapshot", "rm", "alone"]);
    assert_eq!(forkd.json(&["snapshots"]).as_array().unwrap().len(), 0);
}

#[test]
fn unknown_things_are_named_with_a_hint() {
    let forkd = Forkd::held_to_contract();
    for (args, name) in [
        (&["fork", "no-such-tag"][..], "no-such-tag"),
        (&["template", "build", "no-such-image", "--tag", "x"], "no-such-image"),
        (&["branch", "sb-000000000000"], "sb-000000000000"),
        (&["snapshot", "compact", "no-such-tag", "--to", "x"], "no-such-tag"),
    ] {
        let (errors, code) = forkd.refused(args);
        assert!(errors.starts_with("error: ") && errors.contains(name), "{args:?}: {errors}");
        assert!(errors.contains("\nhint: "), "{args:?}: {errors}");
        assert_eq!(code, 1, "{args:?}");
    }
}
