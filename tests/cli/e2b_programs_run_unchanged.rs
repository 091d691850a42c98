//! Goal: a program for E2B runs unchanged against forkd: the published Python package makes a
//! sandbox, runs commands and terminals in it, reads, writes and watches files, pauses, forks and
//! ends it, and is told when a sandbox dies under it.
//!
//! Method: `e2b_session.py` with the package from PyPI in an environment of its own, told of forkd
//! by what `forkd e2b env` prints and by nothing else. Breaks when a route, a field, a framing or a
//! status that the package relies on changes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::forkd::Forkd;

const PACKAGE: &str = "e2b==2.63.0";
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
    checked(Command::new(place.join("bin/pip")).args(["install", "--quiet", PACKAGE]));
    place.join("bin/python")
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
fn the_published_package_finds_all_that_a_session_needs() {
    let forkd = Forkd::new();
    let python = python(forkd.home());
    let mut daemon = serve(&forkd);
    forkd.template("python", "python", 512);
    let variables = forkd.ok(&["e2b", "env"]);
    let session = Path::new(env!("CARGO_MANIFEST_DIR")).join("cli/e2b_session.py");
    let mut program = Command::new(python);
    program.arg(session);
    for line in variables.lines() {
        let (name, value) = line.strip_prefix("export ").unwrap().split_once('=').unwrap();
        program.env(name, value);
    }
    let said = checked(&mut program);
    assert!(said.trim_end().ends_with("done"), "{said}");
    forkd.ok(&["stop", "--stop-sandboxes"]);
    assert!(daemon.wait().unwrap().success());
    let left = forkd.run(&["e2b", "env"]);
    assert!(!left.status.success(), "a daemon that has ended is found no longer");
}
