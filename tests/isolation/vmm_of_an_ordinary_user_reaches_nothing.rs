//! Goal: where the daemon is an ordinary user's, who takes over a VMM reaches as little as where it
//! is root's, although all VMMs and the daemon share a user.
//! Method: a daemon of a user without any right, as systemd or a shell starts it; what is tried in
//! the real VMM, and what is looked at from outside, is what a VMM of root's must stand. The same
//! user's VMMs that are not confined reach what that user does. The same is tried where the user
//! has been given ids, and each VMM so has a user of its own.
//! Not shown: control groups, which such a daemon has only where somebody gives them to it.
//! Broken by: a step of the launcher that is taken for root alone.

use std::path::Path;

use forkd_testkit::audit::{field, violations, violations_among};
use forkd_types::Isolation;

use crate::aims::aims;
use crate::ordinary_user::{Given, OrdinaryDaemon, SUBORDINATE};
use crate::prisoner::{Attempt, attempt_in};

/// What an ordinary user cannot do, confined or not; layers have an owner who may not write them
/// either, until he changes their mode.
fn needs_root(name: &str, argument: &str) -> bool {
    let is_layer = name == "open_for_writing" && argument.contains("/layers/");
    is_layer || name == "system_call" || argument == "/etc/shadow"
}

fn user(pid: u32) -> String {
    field(Path::new(&format!("/proc/{pid}")), "Uid")
}

#[test]
fn a_vmm_of_an_ordinary_user_that_was_taken_over_reaches_nothing() {
    let daemon = OrdinaryDaemon::start("required", Given::Nothing);
    daemon.template();
    let sibling = daemon.one();
    let (id, pid) = daemon.one();
    let shown = daemon.ok(&["info", &id]);
    assert!(shown.contains("namespaces"), "{shown}");
    for (one, other) in [(pid, sibling.1), (sibling.1, pid)] {
        let found =
            violations(one, &[other, daemon.pid(), std::process::id()], Isolation::Namespaces);
        assert!(found.is_empty(), "process {one}: {found:#?}");
    }
    // This level has no user for each VMM.
    assert_eq!((user(pid), user(sibling.1)), (user(daemon.pid()), user(daemon.pid())));

    reaches_nothing(&daemon, id, &sibling);
}

#[test]
fn a_vmm_with_a_user_that_an_ordinary_user_was_given_reaches_nothing() {
    let daemon = OrdinaryDaemon::start("required", Given::Ids);
    daemon.template();
    let sibling = daemon.one();
    let (id, pid) = daemon.one();
    let shown = daemon.ok(&["info", &id]);
    assert!(shown.contains("full"), "{shown}");
    for (one, other) in [(pid, sibling.1), (sibling.1, pid)] {
        let others = [other, daemon.pid(), std::process::id()];
        let found = violations_among(one, &others, SUBORDINATE);
        assert!(found.is_empty(), "process {one}: {found:#?}");
    }
    reaches_nothing(&daemon, id, &sibling);
}

/// Lets the VMM of a sandbox try everything.
fn reaches_nothing(daemon: &OrdinaryDaemon, mut id: String, sibling: &(String, u32)) {
    let directories = [daemon.state(), daemon.run()];
    let aims = aims(&daemon.others(&directories, sibling));
    for (name, argument) in &aims.attempts {
        let attempt = attempt_in(&daemon.run().join(&id), name, argument);
        assert!(!matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
        // QEMU's own filter ends who tries, where ours refuses.
        if attempt == Attempt::Ended {
            (id, _) = daemon.one();
        }
    }
    for name in ["layer_write", "layer_reopen"] {
        let attempt = attempt_in(&daemon.run().join(&id), name, "");
        assert!(matches!(attempt, Attempt::Refused(_)), "{name}: {attempt:?}");
    }
    for unharmed in [&id, &sibling.0] {
        assert_eq!(daemon.ok(&["exec", unharmed, "--", "echo", "unharmed"]), "unharmed");
    }
}

#[test]
fn an_ordinary_users_vmm_that_is_not_confined_reaches_what_the_user_does() {
    let daemon = OrdinaryDaemon::start("none", Given::Ids);
    daemon.template();
    let sibling = daemon.one();
    let (id, pid) = daemon.one();
    let found = violations(pid, &[sibling.1, daemon.pid()], Isolation::Namespaces);
    for what in ["NoNewPrivs", "Seccomp", "net namespace", "user namespace", "files are mounted"] {
        assert!(found.iter().any(|one| one.contains(what)), "{what}: {found:#?}");
    }
    let directories = [daemon.state(), daemon.run()];
    let aims = aims(&daemon.others(&directories, &sibling));
    for (name, argument) in &aims.attempts {
        if needs_root(name, argument) {
            continue;
        }
        let attempt = attempt_in(&daemon.run().join(&id), name, argument);
        assert!(matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
    }
}
