//! Goal: a program for E2B runs unchanged against forkd: the published packages for Python and for
//! JavaScript make a sandbox, run commands and terminals in it, read, write and watch files, pause,
//! fork and end it, and are told when a sandbox dies under them.
//!
//! Method: `e2b_session.py` and `e2b_session.mjs` with the packages from their registries in places
//! of their own, told of forkd by what `forkd e2b env` prints and by nothing else. Breaks when a
//! route, a field, a framing or a status that a package relies on changes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::forkd::Forkd;

const PYTHON_PACKAGE: &str = "e2b==2.63.0";
const NPM_PACKAGE: &str = "e2b@2.51.0";
/// For a daemon to listen; it may look for KVM first.
const START_PATIENCE: Duration = Duration::from_secs(120);

fn checked(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    said.into_owned()
}

/// A Python with the package.
fn python(home: &Path) -> PathBuf {
    let place = home.join("venv");
    checked(Command::new("python3").args(["-m", "venv"]).arg(&place));
    checked(Command::new(place.join("bin/pip")).args(["install", "--quiet", PYTHON_PACKAGE]));
    place.join("bin/python")
}

/// Whether the package for JavaScript runs here: it needs a newer Node than Debian 12 has.
fn has_node_for_it() -> bool {
    let version = checked(Command::new("node").arg("--version"));
    let major = version.trim().trim_start_matches('v').split('.').next();
    major.and_then(|major| major.parse().ok()) >= Some(20)
}

/// The session for JavaScript, beside the package.
fn javascript(home: &Path) -> PathBuf {
    let place = home.join("npm");
    std::fs::create_dir(&place).unwrap();
    let install = ["install", "--silent", "--no-audit", "--no-fund", NPM_PACKAGE];
    checked(Command::new("npm").args(install).arg("--prefix").arg(&place));
    let session = place.join("session.mjs");
    std::fs::copy(session_file("e2b_session.mjs"), &session).unwrap();
    session
}

fn session_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cli").join(name)
}

/// Runs a session, told what `forkd e2b env` prints.
fn play(forkd: &Forkd, program: &mut Command) {
    for line in forkd.ok(&["e2b", "env"]).lines() {
        let (name, value) = line.strip_prefix("export ").unwrap().split_once('=').unwrap();
        program.env(name, value);
    }
    let said = checked(program);
    assert!(said.trim_end().ends_with("done"), "{said}");
}

/// A daemon in the foreground, with E2B's interfaces on a port of its own.
fn serve(forkd: &Forkd) -> Child {
    let options = ["serve", "--e2b-listen", "127.0.0.1:0", "--e2b-template", "base=python"];
    let log = std::fs::File::create(forkd.home().join("serve.log")).unwrap();
    let mut daemon = forkd.command(&options).stderr(log).stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + START_PATIENCE;
    while !forkd.run(&["e2b", "env"]).status.success() || !forkd.socket().exists() {
        assert!(Instant::now() < until, "the daemon listens");
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon lives");
        std::thread::sleep(Duration::from_millis(200));
    }
    daemon
}

#[test]
fn the_published_packages_find_all_that_a_session_needs() {
    let forkd = Forkd::new();
    let python = python(forkd.home());
    let javascript = has_node_for_it().then(|| javascript(forkd.home()));
    let mut daemon = serve(&forkd);
    forkd.template("python", "python", 512);
    play(&forkd, Command::new(python).arg(session_file("e2b_session.py")));
    match javascript {
        Some(session) => play(&forkd, Command::new("node").arg(session)),
        None => eprintln!("not played: the session for JavaScript; it needs Node 20"),
    }
    forkd.ok(&["stop", "--stop-sandboxes"]);
    assert!(daemon.wait().unwrap().success());
    let left = forkd.run(&["e2b", "env"]);
    assert!(!left.status.success(), "a daemon that has ended is found no longer");
}
