//! Goal: who requires KVM gets no emulated guest: no daemon starts, by itself or for another verb,
//! the error says why and what helps, and doctor fails. A daemon that emulates says that this is no
//! security boundary.
//!
//! Method: commands whose `/dev/kvm`, if there is one, is another device; so this is the same on
//! every host. Breaks when the daemon falls back to emulation. That a guest starts where KVM works
//! is shown by the KVM tier.

use std::process::{Command, Output};

use serde_json::Value;

use crate::forkd::Forkd;

const WITHOUT_KVM: &str = r#"
    if [ -e /dev/kvm ]; then mount --bind /dev/null /dev/kvm; fi
    exec "$@"
"#;

/// A command where guests cannot run on KVM, with this variable besides.
fn run(forkd: &Forkd, args: &[&str], (name, value): (&str, &str)) -> (Output, String) {
    // A daemon that starts would not end by itself.
    let mut command = forkd.within(Command::new("timeout"));
    command.args(["120", "unshare", "--mount", "sh", "-c", WITHOUT_KVM, "sh"]);
    command.arg(forkd.command(&[]).get_program()).args(args);
    let output = command.env("FORKD_ACCEL", "auto").env(name, value).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn no_daemon_starts_and_the_error_names_the_remedy() {
    let forkd = Forkd::new();
    for (args, variable, code) in [
        (&["serve", "--require-kvm"][..], ("FORKD_REQUIRE_KVM", "0"), 1),
        (&["serve"], ("FORKD_REQUIRE_KVM", "1"), 1),
        // It would start one.
        (&["ls"], ("FORKD_REQUIRE_KVM", "true"), 3),
    ] {
        let (output, said) = run(&forkd, args, variable);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for words in ["do not run on KVM here", "not a security boundary", "access to /dev/kvm"] {
            assert!(said.contains(words), "{args:?}: {words}: {said}");
        }
        assert!(!forkd.socket().exists(), "{args:?}");
    }
    let (output, said) = run(&forkd, &["serve", "--require-kvm"], ("FORKD_ACCEL", "tcg"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("both asked for and refused"), "{said}");
}

#[test]
fn doctor_and_the_daemon_say_what_emulation_is() {
    let forkd = Forkd::new();
    for (value, outcome, code) in [("yes", "fail", 1), ("no", "warn", 0)] {
        let (output, said) = run(&forkd, &["doctor", "--json"], ("FORKD_REQUIRE_KVM", value));
        let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let kvm = checks.iter().find(|check| check["name"] == "KVM").unwrap();
        assert_eq!(kvm["outcome"], outcome, "{kvm}");
        assert!(kvm["remedy"].as_str().unwrap().contains("not a security boundary"), "{kvm}");
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
    forkd.ok(&["ls"]);
    let daemon = &forkd.json(&["version"])["daemon"];
    let is_kvm = daemon["accelerator"] == "kvm";
    assert_eq!(daemon["security_boundary"], is_kvm, "{daemon}");
    let boundary = if is_kvm { "a security boundary" } else { "no security boundary" };
    assert!(forkd.ok(&["version"]).contains(&format!("({boundary})")), "{daemon}");
}
