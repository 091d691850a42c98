//! Goal: a build goes on from the last step that has not changed, with its files and processes; a
//! process that a step has started runs in every child; a build that fails leaves nothing but the
//! steps it finished.
//!
//! Method: eight steps, cold, again, and with the fifth changed. A step that is run writes a random
//! number, so that a result shows whose steps it is made of. Breaks when a changed step or file is
//! taken from the cache, when an unchanged one is run again, or when a sandbox is left.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::forkd::Forkd;
use crate::processes::wait_until;

fn recipe(fifth: &str) -> String {
    format!(
        r#"from = "tiny"
[[step]]
run = "cat /proc/sys/kernel/random/uuid > /first"
[[step]]
env = {{ GREETING = "good day" }}
[[step]]
workdir = "/srv/app"
[[step]]
copy = "files"
to = "."
[[step]]
run = "echo {fifth} > fifth; cat /proc/sys/kernel/random/uuid >> fifth"
[[step]]
user = "7:8"
[[step]]
start = "echo $GREETING from $(pwd) as $(id -u) > /tmp/started; while :; do echo x; sleep 1; done"
ready = {{ command = "test -s /tmp/started" }}
[[step]]
run = "cat /tmp/started > /tmp/seen"
"#
    )
}

fn context(folder: &Path) {
    fs::create_dir_all(folder.join("files/deep")).unwrap();
    fs::write(folder.join("files/deep/a"), "content").unwrap();
    fs::write(folder.join("files/left.log"), "x").unwrap();
    fs::write(folder.join(".dockerignore"), "**/*.log\n").unwrap();
    fs::write(folder.join("forkd.toml"), recipe("one")).unwrap();
}

fn cached(built: &Value) -> Vec<bool> {
    let steps = built["steps"].as_array().unwrap();
    steps.iter().map(|step| step["cached"].as_bool().unwrap()).collect()
}

/// What a new child of `app` says.
fn child_says(forkd: &Forkd, script: &str) -> String {
    forkd.ok(&["run", "app", "--", "/bin/sh", "-c", script])
}

#[test]
fn a_build_runs_only_the_steps_from_the_first_changed_one_on() {
    let mut forkd = Forkd::new();
    let folder = tempfile::tempdir().unwrap();
    context(folder.path());
    let path = folder.path().to_str().unwrap();
    forkd.template("tiny", "tiny", 128);
    forkd.hold_to_contract();
    let build = |what: &str| {
        let built = forkd.json(&["build", "-t", "app", path]);
        println!("{what}: {:.0} ms", built["ms"].as_f64().unwrap());
        built
    };

    assert_eq!(cached(&build("cold")), [false; 8]);
    let script = "cat /srv/app/deep/a; echo; ls /srv/app; cat /tmp/seen; ls -ln /tmp/seen; \
        ps | grep -c '[w]hile'";
    let said = child_says(&forkd, script);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..4], ["content", "deep", "fifth", "good day from /srv/app as 7"], "{said}");
    assert!(lines[4].contains(" 7 ") && lines[4].contains(" 8 "), "{said}");
    assert_eq!(lines[5], "1", "the process that was started runs in a child: {said}");
    let written = child_says(&forkd, "cat /first /srv/app/fifth");

    assert_eq!(cached(&build("warm")), [true; 8]);
    assert_eq!(child_says(&forkd, "cat /first /srv/app/fifth"), written);

    fs::write(folder.path().join("forkd.toml"), recipe("two")).unwrap();
    let changed = [true, true, true, true, false, false, false, false];
    assert_eq!(cached(&build("the fifth step changed")), changed);
    let again = child_says(&forkd, "cat /first /srv/app/fifth");
    assert_eq!(again.lines().next(), written.lines().next(), "the first step was not run again");
    assert!(again.contains("two") && !again.contains("one"), "{again}");

    fs::write(folder.path().join("files/deep/a"), "changed").unwrap();
    // Between the first step and the changed one nothing changes the sandbox: no snapshot is there.
    let changed = [true, false, false, false, false, false, false, false];
    assert_eq!(cached(&build("a file changed")), changed);
    assert_eq!(child_says(&forkd, "cat /srv/app/deep/a"), "changed");

    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0, "no sandbox is left");
    let tags = |args: &[&str]| forkd.json(args).as_array().unwrap().len();
    assert_eq!(tags(&["snapshots"]), 2, "steps are not shown among the others");
    let before = tags(&["snapshots", "--all"]);
    let gone = forkd.json(&["build", "--prune", "--max-size-mib", "0"]);
    let gone = gone["removed"].as_array().unwrap().len();
    assert!(gone > 0, "steps that nothing builds on go");
    assert_eq!(tags(&["snapshots", "--all"]), before - gone);
    assert_eq!(child_says(&forkd, "cat /srv/app/deep/a"), "changed", "the result still starts");
    assert_eq!(cached(&build("with the last step alone")), [true; 8], "its last step stays");
}

#[test]
fn a_step_that_fails_says_what_it_wrote_and_leaves_only_the_steps_before_it() {
    let mut forkd = Forkd::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let text = "from = \"tiny\"\n[[step]]\nrun = \"true\"\n[[step]]\nrun = \"echo so; exit 7\"\n";
    fs::write(folder.path().join("forkd.toml"), text).unwrap();
    forkd.template("tiny", "tiny", 128);
    forkd.hold_to_contract();

    let (errors, code) = forkd.refused(&["build", "-t", "app", path]);
    assert_eq!(code, 1);
    for part in ["line 4", "exit code 7", "so\n"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0, "no sandbox is left");
    let tags = forkd.json(&["snapshots", "--all"]);
    assert_eq!(tags.as_array().unwrap().len(), 2, "the template and the first step: {tags}");

    let (errors, _) = forkd.refused(&["build", "--keep", path]);
    assert!(errors.contains("1/2 run true: cached"), "{errors}");
    let kept = forkd.json(&["ls"])[0]["id"].as_str().unwrap().to_owned();
    assert!(errors.contains(&kept), "{errors}");
    let (errors, _) = forkd.refused(&["build", "-t", "tiny", path]);
    assert!(errors.contains("exit code 7"), "{errors}");
    let text = "from = \"tiny\"\n[[step]]\nrun = \"true\"\n";
    fs::write(folder.path().join("forkd.toml"), text).unwrap();
    let (errors, _) = forkd.refused(&["build", "-t", "tiny", path]);
    assert!(errors.contains("no build has made"), "{errors}");
}

#[test]
fn a_build_without_the_cache_runs_all_steps_and_replaces_its_own_result() {
    let forkd = Forkd::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let text = "from = \"tiny\"\n[[step]]\nrun = \"cat /proc/sys/kernel/random/uuid > /first\"\n";
    fs::write(folder.path().join("forkd.toml"), text).unwrap();
    forkd.template("tiny", "tiny", 128);
    let build = |options: &[&str]| {
        let built = forkd.json(&[&["build", "-t", "app", path], options].concat());
        (cached(&built), child_says(&forkd, "cat /first"))
    };
    let (_, first) = build(&[]);
    let (cached, second) = build(&["--no-cache"]);
    assert_eq!(cached, [false]);
    assert_ne!(first, second, "the step was run again");
    let (cached, third) = build(&[]);
    assert_eq!((cached, third), (vec![true], second));
}

#[test]
fn a_file_that_changes_after_it_was_planned_ends_the_build() {
    let forkd = Forkd::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let text = "from = \"tiny\"\n[[step]]\nrun = \"until [ -e /go ]; do sleep 0.1; done\"\n\
        [[step]]\ncopy = \"a\"\nto = \"/a\"\n";
    fs::write(folder.path().join("forkd.toml"), text).unwrap();
    fs::write(folder.path().join("a"), "planned").unwrap();
    forkd.template("tiny", "tiny", 128);
    std::thread::scope(|scope| {
        let build = scope.spawn(|| forkd.refused(&["build", path]));
        let sandboxes = || forkd.json(&["ls"]).as_array().unwrap().clone();
        // The plan is made before the sandbox.
        wait_until("the sandbox of the build runs", || {
            sandboxes().iter().any(|sandbox| sandbox["state"] == "running")
        });
        fs::write(folder.path().join("a"), "another").unwrap();
        let sandbox = sandboxes()[0]["id"].as_str().unwrap().to_owned();
        forkd.ok(&["exec", &sandbox, "--", "touch", "/go"]);
        let (errors, code) = build.join().unwrap();
        assert_eq!(code, 1);
        assert!(errors.contains("`a` changed while it was copied"), "{errors}");
    });
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 0, "no sandbox is left");
    let steps = forkd.json(&["snapshots", "--all"]).as_array().unwrap().len();
    assert_eq!(steps, 2, "the template and the first step");
}
