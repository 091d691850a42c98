//! Goal: `forkd doctor` finds each prerequisite that is broken, names it with its remedy, ends with
//! 1, does not try what depends on it, and leaves nothing.
//!
//! Method: one thing after the other is broken by the switches that the daemon has too. Breaks when
//! a check looks at the wrong thing, or passes without having looked. That a good host passes is
//! shown by `sandboxes_stay_confined`.

use std::path::Path;

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
