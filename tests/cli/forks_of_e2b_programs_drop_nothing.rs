//! Goal: where forks are concerned, E2B's clients find more here than where they come from. Many in
//! one call have the programs and the interpreter of their source; the source drops no stream, no
//! HTTP answer and no WebSocket, and stands still for milliseconds; a fork answers sooner than a
//! new sandbox that is brought as far. What waiting does not help is asked once.
//!
//! Method: `e2b/forks.mjs` with E2B's package for JavaScript, and a refused request of that for
//! Python, which repeats what it may; the daemon's figures say how long the source stood still and
//! how often it was asked. Of the pauses the shortest counts: a busy machine lengthens the others.
//! Breaks when a branch cuts what its source holds open, when children start again instead of going
//! on, or when a refusal makes clients repeat it.

use std::process::Command;

use crate::e2b_packages::{NEWEST, Player, checked, file_of, variables};
use crate::forkd::Forkd;

/// The bucket of the pauses that a program hardly notices, in seconds.
const SHORT: &str = "0.008";

fn daemon(variables: &[(&'static str, &'static str)]) -> Forkd {
    let listen = [("FORKD_E2B_LISTEN", "127.0.0.1:0")];
    let forkd = Forkd::with_variables(&[&listen, variables].concat());
    forkd.template("python", "python", 256);
    forkd.ok(&["e2b", "alias", "base=python", "code-interpreter-v1=python"]);
    forkd
}

/// Runs a program that knows the daemon from E2B's variables alone.
fn run(forkd: &Forkd, program: &mut Command) -> String {
    checked(program.envs(variables(forkd)))
}

/// The sample of the daemon's figures whose line has all of these words.
fn sample(forkd: &Forkd, metric: &str, words: &[&str]) -> f64 {
    let samples = forkd.ok(&["metrics", metric]);
    let found = samples.lines().find(|line| words.iter().all(|word| line.contains(word)));
    let value = found.and_then(|line| line.split_whitespace().last()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {words:?} in {samples}"))
}

#[expect(clippy::print_stderr, reason = "for whoever looks where the time goes")]
fn forks_go_on_and_their_source_drops_nothing(count: u32) {
    let forkd = daemon(&[]);
    let Some(node) = Player::node(forkd.home(), &NEWEST, &[file_of("e2b/forks.mjs")]) else {
        eprintln!("not played: forks.mjs; it needs Node 20");
        return;
    };
    let said = run(&forkd, node.command(&file_of("e2b/forks.mjs")).arg(count.to_string()));
    eprintln!("{said}");
    assert!(said.ends_with("done\n"), "{said}");
    let pauses = "forkd_branch_pause_seconds";
    let all = sample(&forkd, pauses, &["_count", "live"]);
    let short = sample(&forkd, pauses, &["_bucket", "live", &format!("le=\"{SHORT}\"")]);
    assert!(all > 1.0 && short > 0.0, "of {all} pauses {short} took at most {SHORT} s");
}

#[test]
fn forks_of_one_call_go_on_and_their_source_drops_nothing() {
    forks_go_on_and_their_source_drops_nothing(20);
}

#[test]
#[ignore = "takes both processors for a minute: the same with a hundred"]
fn a_hundred_forks_of_one_call_go_on_and_their_source_drops_nothing() {
    forks_go_on_and_their_source_drops_nothing(100);
}

const REFUSED: &str = "
from e2b import RateLimitException, Sandbox
with Sandbox.create(timeout=300):
    try:
        Sandbox.create()
        print('made')
    except RateLimitException as refusal:
        print('refused')
";

#[test]
fn what_waiting_does_not_help_is_asked_once() {
    let forkd = daemon(&[("FORKD_MAX_SANDBOXES", "1")]);
    let program = forkd.home().join("refused.py");
    std::fs::write(&program, REFUSED).unwrap();
    assert_eq!(run(&forkd, &mut Player::python(&NEWEST).command(&program)), "refused\n");
    let asked = sample(&forkd, "forkd_requests_total", &["status=\"429\""]);
    assert!((asked - 1.0).abs() < f64::EPSILON, "it was asked {asked} times");
}
