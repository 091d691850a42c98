//! Goal: `forkd doctor` finds each prerequisite that is broken, names it with its remedy, ends with
//! 1, does not try what depends on it, and leaves nothing.
//!
//! Method: one thing after the other is broken by the switches that the daemon has too. Breaks when
//! a check looks at the wrong thing, or passes without having looked. That a good host passes is
//! shown by `sandboxes_stay_confined`. The round of E2B's clients is made through real daemons.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use forkd_testkit::SmallTmpfs;
use serde_json::Value;

use crate::forkd::Forkd;

/// The checks, with this variable set to something that does not work.
fn checks(forkd: &Forkd, variable: &str, value: &Path) -> Vec<Value> {
    let output = forkd.command(&["doctor", "--json"]).env(variable, value).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{variable}: {words}");
    assert!(words.contains("forkd does not work here"), "{words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn find<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn each_broken_prerequisite_is_named_with_its_remedy() {
    let forkd = Forkd::new();
    let small = SmallTmpfs::mount(64);
    let nowhere = Path::new("/nonexistent/forkd");
    let text = forkd.home().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    for (variable, value, name, words, remedy) in [
        ("FORKD_SHIM", nowhere, "shim", "does not exist", "FORKD_SHIM"),
        ("FORKD_SHIM", &text, "QEMU's commands", "LD_PRELOAD", "the shim of this forkd"),
        ("FORKD_QEMU", nowhere, "QEMU", "/nonexistent/forkd", "apt-get install qemu-system-x86"),
        ("FORKD_QEMU", Path::new("/bin/true"), "QEMU", "QEMU", "apt-get install qemu-system-x86"),
        ("FORKD_IMAGE_DIR", nowhere, "images", "none in", "make images"),
        ("FORKD_HOT_DIR", small.path(), "hot directory", "are needed", "larger tmpfs"),
        ("FORKD_HOT_DIR", forkd.home(), "hot directory", "not on tmpfs", "FORKD_HOT_DIR"),
        ("FORKD_STATE_DIR", Path::new("/proc/1/x"), "store directory", "/proc/1/x", "--store"),
    ] {
        let checks = checks(&forkd, variable, value);
        let check = find(&checks, name);
        let said = |field: &str, wanted: &str| {
            let text = check[field].as_str().unwrap_or_default();
            assert!(text.contains(wanted), "{variable}={}: {check}", value.display());
        };
        assert_eq!(check["outcome"], "fail", "{variable}={}: {checks:?}", value.display());
        said("detail", words);
        said("remedy", remedy);
        let guest = find(&checks, "guest");
        assert!(guest["detail"].as_str().unwrap().contains("not tried"), "{guest}");
        let failed = checks.iter().filter(|check| check["outcome"] == "fail");
        assert_eq!(failed.count(), 1, "nothing else is said to fail: {checks:?}");
    }
    let left = ["state", "run"].map(|name| {
        let entries = std::fs::read_dir(forkd.home().join(name)).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    });
    assert!(left.concat().is_empty(), "{left:?}");
    assert_eq!(std::fs::read_dir(forkd.hot()).unwrap().count(), 0);
}

/// Nobody's rights are these: an ordinary user of the host.
const ORDINARY: u32 = 65534;
/// As on a host that forbids user namespaces, which is told by the same switch in one of them.
const FORBID: &str = r#"
    echo 0 > /proc/sys/user/max_user_namespaces
    exec setpriv --inh-caps=-all --ambient-caps=-all "$@"
"#;

/// What doctor says of isolation to an ordinary user, here or where the host forbids namespaces.
fn isolation(forkd: &Forkd, policy: &str, forbidden: bool) -> Value {
    let own = |directory: tempfile::TempDir| {
        std::os::unix::fs::chown(directory.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        directory
    };
    let home = own(tempfile::TempDir::with_prefix("fh-").unwrap());
    let hot = own(tempfile::TempDir::with_prefix_in("fh-", "/dev/shm").unwrap());
    let mut command = forkd.within(Command::new("setpriv"));
    let user = ORDINARY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    if forbidden {
        command.args(["unshare", "--user", "--map-current-user", "--keep-caps"]);
        command.args(["sh", "-c", FORBID, "sh"]);
    }
    command.arg(forkd.command(&[]).get_program()).args(["doctor", "--json"]);
    command.env("FORKD_HOME", home.path()).env("FORKD_HOT_DIR", hot.path());
    // Nothing is booted: that is shown elsewhere, and takes a while.
    command.env("FORKD_ISOLATION", policy).env("FORKD_IMAGE_DIR", "/nonexistent");
    let output = command.output().unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let left = std::fs::read_dir(home.path().join("run")).unwrap().flatten();
    assert_eq!(left.map(|entry| entry.file_name()).collect::<Vec<_>>(), Vec::<OsString>::new());
    find(&checks, "isolation").clone()
}

#[test]
fn the_level_of_isolation_is_told_and_the_switch_that_forbids_it() {
    let forkd = Forkd::new();
    for (policy, forbidden, outcome, detail, remedy) in [
        ("best", false, "warn", "`namespaces`", "as root"),
        ("none", false, "warn", "this host permits `namespaces`", "FORKD_ISOLATION"),
        ("best", true, "warn", "create a user namespace", "user.max_user_namespaces is 0"),
        ("required", true, "fail", "create a user namespace", "user.max_user_namespaces is 0"),
    ] {
        let check = isolation(&forkd, policy, forbidden);
        assert_eq!(check["outcome"], outcome, "{check}");
        for (field, words) in [("detail", detail), ("remedy", remedy)] {
            assert!(check[field].as_str().unwrap().contains(words), "{words}: {check}");
        }
    }
}

/// What doctor says of E2B's interfaces when it hears this of them. Nothing is booted.
fn e2b(forkd: &Forkd, listen: Option<&str>) -> Value {
    let mut command = forkd.command(&["doctor", "--json"]);
    command.env("FORKD_IMAGE_DIR", "/nonexistent").env_remove("FORKD_E2B_LISTEN");
    let output =
        command.envs(listen.map(|address| ("FORKD_E2B_LISTEN", address))).output().unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    find(&checks, "E2B").clone()
}

#[test]
fn a_round_of_e2b_s_clients_is_made_and_what_is_in_its_way_is_named() {
    let forkd = Forkd::new();
    let said = |check: &Value, outcome: &str, detail: &str, remedy: &str| {
        assert_eq!(check["outcome"], outcome, "{check}");
        for (field, words) in [("detail", detail), ("remedy", remedy)] {
            assert!(check[field].as_str().unwrap_or_default().contains(words), "{words}: {check}");
        }
    };
    said(&e2b(&forkd, None), "ok", "--e2b-listen", "");
    said(&e2b(&forkd, Some("127.0.0.1:0")), "ok", "starts next", "");
    said(&e2b(&forkd, Some("0.0.0.0:8891")), "warn", "needs TLS", "--tls-cert");
    forkd.ok(&["ls"]);
    let without = e2b(&forkd, Some("127.0.0.1:0"));
    said(&without, "warn", "was started without", "forkd stop");
    forkd.ok(&["stop"]);
    // A daemon that listens, first without a template, then with one, then without its key.
    let start = forkd.command(&["ls"]).env("FORKD_E2B_LISTEN", "127.0.0.1:0").output().unwrap();
    assert!(start.status.success(), "{}", String::from_utf8_lossy(&start.stderr));
    said(&e2b(&forkd, None), "warn", "base and code-interpreter-v1", "forkd e2b alias base=TAG");
    forkd.template("tiny", "small", 128);
    forkd.ok(&["e2b", "alias", "base=small"]);
    said(&e2b(&forkd, None), "ok", "templates: base", "");
    let sandbox = forkd.json(&["fork", "small"])[0]["id"].as_str().unwrap().to_owned();
    said(&e2b(&forkd, None), "ok", "templates: base", "");
    forkd.ok(&["rm", &sandbox]);
    forkd.ok(&["e2b", "alias", "mine=gone"]);
    said(&e2b(&forkd, None), "warn", "name mine", "forkd e2b alias mine=TAG");
    let told = forkd.home().join("state/e2b/env");
    let lines = std::fs::read_to_string(&told).unwrap();
    let changed = |line: &str| match line.split_once("E2B_API_KEY=") {
        Some((export, _)) => format!("{export}E2B_API_KEY=e2b_00\n"),
        None => format!("{line}\n"),
    };
    std::fs::write(&told, lines.lines().map(changed).collect::<String>()).unwrap();
    said(&e2b(&forkd, None), "fail", "answers 401", "another daemon");
}
