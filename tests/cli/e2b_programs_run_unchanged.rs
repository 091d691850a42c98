//! Goal: a program for E2B runs unchanged against forkd: the published packages for Python and for
//! JavaScript make a sandbox, run commands, terminals and code in it, read, write and watch files,
//! reach a server in it, pause, fork and end it, and are told when a sandbox dies under them. What
//! `e2b/methods.tsv` says of each public method of the packages is so.
//!
//! Method: the sessions in both languages, with the packages from their registries in places of
//! their own, told of forkd by what the first block of the guide gives a shell and by nothing else.
//! Beside each runs `e2b/methods`, which writes down what it calls and how that ends, and lists
//! what the packages have. Breaks when a route, a field, a framing or a status that a package
//! relies on changes, and when a package gets or loses a method.

use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_testkit::e2b_methods::{Call, MethodKey, calls_of, findings, listed};

use crate::e2b_packages::{NEWEST, Player, checked, file_of, name_of};
use crate::forkd::Forkd;

const PYTHON_SESSIONS: [&str; 4] = [
    "e2b_session.py",
    "e2b_interpreter_session.py",
    "e2b/all_methods.py",
    "e2b/all_methods_async.py",
];
const NODE_SESSIONS: [&str; 3] =
    ["e2b_session.mjs", "e2b_interpreter_session.mjs", "e2b/all_methods.mjs"];
const GUIDES_ADDRESS: &str = "127.0.0.1:8891";

/// The packages that the sessions are played with.
fn players(forkd: &Forkd) -> (Player, Option<Player>) {
    let home = forkd.home();
    let sessions: Vec<PathBuf> =
        NODE_SESSIONS.into_iter().chain(["e2b/methods.mjs"]).map(file_of).collect();
    (Player::python(&NEWEST), Player::node(home, &NEWEST, &sessions))
}

/// All methods of the packages.
fn methods(player: &Player) -> Vec<MethodKey> {
    let list = match player {
        Player::Python(python) => {
            checked(Command::new(python).arg(file_of("e2b/methods.py")).arg("list"))
        }
        Player::Node(place) => checked(Command::new("node").arg(place.join("methods.mjs"))),
    };
    listed(&list).into_iter().collect()
}

/// Plays a session that is told these variables. Returns what it has called.
fn play(player: &Player, session: &str, variables: &[(String, String)], home: &Path) -> Vec<Call> {
    let name = name_of(session);
    let record = home.join(format!("{name}.calls"));
    let mut program = match player {
        Player::Python(_) => {
            let mut program = player.command(&file_of("e2b/methods.py"));
            program.arg("play").arg(&record).arg(file_of(session));
            program
        }
        Player::Node(place) => {
            let mut program = Command::new("node");
            program.current_dir(place).args(["--import", "./methods.mjs", name]);
            program.env("E2B_METHODS_RECORD", &record);
            program
        }
    };
    let said = checked(program.envs(variables.iter().cloned()));
    assert!(said.trim_end().ends_with("done"), "{said}");
    calls_of(name, &std::fs::read_to_string(record).unwrap())
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

/// A program finds a template by a name that was given to it just now.
fn names_of_templates_are_changed_while_the_daemon_runs(
    forkd: &Forkd,
    python: &Player,
    variables: &[(String, String)],
) {
    let program = forkd.home().join("exists.py");
    std::fs::write(&program, "import e2b\nprint(e2b.Template.exists('mine'))\n").unwrap();
    let exists = || checked(python.command(&program).envs(variables.iter().cloned()));
    assert_eq!(exists(), "False\n");
    forkd.ok(&["e2b", "alias", "mine=python", "base=python"]);
    assert_eq!(exists(), "True\n");
    assert_eq!(forkd.ok(&["e2b", "alias"]), "base=python\nmine=python");
    forkd.ok(&["e2b", "alias", "--remove", "mine"]);
    assert_eq!(exists(), "False\n");
    let (errors, _) = forkd.refused(&["e2b", "alias", "--remove", "mine"]);
    assert!(errors.contains("nothing was said of the name 'mine'"), "{errors}");
}

#[test]
fn the_published_packages_find_all_that_a_session_needs() {
    let forkd = Forkd::new();
    let (python, node) = players(&forkd);
    let variables = variables_of_the_guide(&forkd);
    assert_eq!(variables.len(), 3, "{variables:?}");
    let (mut methods, mut calls) = (methods(&python), Vec::new());
    for session in PYTHON_SESSIONS {
        calls.extend(play(&python, session, &variables, forkd.home()));
    }
    match node {
        Some(node) => {
            methods.extend(self::methods(&node));
            for session in NODE_SESSIONS {
                calls.extend(play(&node, session, &variables, forkd.home()));
            }
        }
        None => eprintln!("not played: the sessions for JavaScript; they need Node 20"),
    }
    names_of_templates_are_changed_while_the_daemon_runs(&forkd, &python, &variables);
    let wrong = findings(&methods.into_iter().collect(), &calls);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    forkd.ok(&["stop", "--stop-sandboxes"]);
    let left = forkd.run(&["e2b", "env"]);
    assert!(!left.status.success(), "a daemon that has ended is found no longer");
}
