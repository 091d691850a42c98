//! Goal: a program for E2B runs unchanged against forkd: the published packages for Python and for
//! JavaScript make a sandbox, run commands, terminals and code in it, read, write and watch files,
//! reach a server in it, pause, fork and end it, and are told when a sandbox dies under them.
//!
//! Method: `e2b_session` and `e2b_interpreter_session` in both languages, with the packages from
//! their registries in places of their own, told of forkd by what the first block of the guide
//! gives a shell and by nothing else. Breaks when a route, a field, a framing or a status that a
//! package relies on changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::forkd::Forkd;

const PYTHON_PACKAGES: [&str; 2] = ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"];
const NPM_PACKAGES: [&str; 2] = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"];
const GUIDES_ADDRESS: &str = "127.0.0.1:8891";

fn checked(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    said.into_owned()
}

/// A Python with the packages.
fn python(home: &Path) -> PathBuf {
    let place = home.join("venv");
    checked(Command::new("python3").args(["-m", "venv"]).arg(&place));
    checked(Command::new(place.join("bin/pip")).args(["install", "--quiet"]).args(PYTHON_PACKAGES));
    place.join("bin/python")
}

/// Whether the packages for JavaScript run here: they need a newer Node than Debian 12 has.
fn has_node_for_it() -> bool {
    let version = checked(Command::new("node").arg("--version"));
    let major = version.trim().trim_start_matches('v').split('.').next();
    major.and_then(|major| major.parse().ok()) >= Some(20)
}

/// The sessions for JavaScript, beside the packages.
fn javascript(home: &Path) -> Vec<PathBuf> {
    let place = home.join("npm");
    std::fs::create_dir(&place).unwrap();
    let install = ["install", "--silent", "--no-audit", "--no-fund"];
    checked(Command::new("npm").args(install).args(NPM_PACKAGES).arg("--prefix").arg(&place));
    let copied = ["e2b_session.mjs", "e2b_interpreter_session.mjs"].map(|name| {
        let session = place.join(name);
        std::fs::copy(session_file(name), &session).unwrap();
        session
    });
    copied.into()
}

fn session_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cli").join(name)
}

/// Runs a session that is told these variables.
fn play(program: &mut Command, variables: &[(String, String)]) {
    let said = checked(program.envs(variables.iter().cloned()));
    assert!(said.trim_end().ends_with("done"), "{said}");
}

/// What the first block of `docs/guides/coming-from-e2b.md` gives a shell, on any free port.
fn variables_of_the_guide(forkd: &Forkd) -> Vec<(String, String)> {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/coming-from-e2b.md");
    let page = std::fs::read_to_string(guide).unwrap();
    let (_, rest) = page.split_once("```sh\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    assert!(block.contains(GUIDES_ADDRESS), "{block}");
    let block = block.replace(GUIDES_ADDRESS, "127.0.0.1:0");
    let script = format!("set -eu\n{block}\nenv | grep ^E2B_");
    let mut shell = forkd.within(Command::new("/bin/bash"));
    let said = checked(shell.arg("-c").arg(script));
    let variables = said.lines().filter(|line| line.starts_with("E2B_"));
    let pair = |line: &str| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    variables.filter_map(pair).collect()
}

#[test]
fn the_published_packages_find_all_that_a_session_needs() {
    let forkd = Forkd::new();
    let python = python(forkd.home());
    let javascript = has_node_for_it().then(|| javascript(forkd.home()));
    let variables = variables_of_the_guide(&forkd);
    assert_eq!(variables.len(), 3, "{variables:?}");
    for session in ["e2b_session.py", "e2b_interpreter_session.py"] {
        play(Command::new(&python).arg(session_file(session)), &variables);
    }
    match javascript {
        Some(sessions) => {
            for session in sessions {
                play(Command::new("node").arg(session), &variables);
            }
        }
        None => eprintln!("not played: the sessions for JavaScript; they need Node 20"),
    }
    forkd.ok(&["stop", "--stop-sandboxes"]);
    let left = forkd.run(&["e2b", "env"]);
    assert!(!left.status.success(), "a daemon that has ended is found no longer");
}
