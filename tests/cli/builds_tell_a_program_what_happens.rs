//! Goal: a program that runs `forkd build --events` can follow a build, and knows in the end what
//! was built or what failed, without reading what is meant for people.
//!
//! Method: a recipe on standard input, built twice, then with steps that fail. Breaks when a line
//! is no JSON, when a step is not told of, or when a failure lacks its step, output or sandbox.

use std::io::Write as _;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::forkd::Forkd;

/// Builds a recipe from standard input.
fn build(forkd: &Forkd, options: &[&str], recipe: &str) -> Output {
    let mut command = forkd.command(&["build", "--events", "--file", "-"]);
    command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(recipe.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn events(output: &Output) -> Vec<Value> {
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number and status of each step event.
fn told(events: &[Value]) -> Vec<String> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps
        .map(|event| format!("{} {}", event["number"], event["status"].as_str().unwrap()))
        .collect()
}

const RECIPE: &str = "from = \"tiny\"\n[[step]]\nrun = \"true\"\n[[step]]\nworkdir = \"/srv\"\n";

#[test]
fn each_step_is_told_of_and_the_last_line_has_the_result_or_the_failure() {
    let mut forkd = Forkd::new();
    forkd.template("tiny", "tiny", 128);
    forkd.hold_to_contract();

    let first = build(&forkd, &["-t", "app"], RECIPE);
    assert!(first.status.success(), "{first:?}");
    assert_eq!(told(&events(&first)), ["1 running", "1 done", "2 done"]);
    let again = events(&build(&forkd, &["-t", "app"], RECIPE));
    assert_eq!(told(&again), ["1 cached", "2 done"]);
    let built = again.last().unwrap();
    assert_eq!((&built["event"], &built["tag"]), (&json!("built"), &json!("app")));
    assert_eq!(built["steps"][0]["snapshot_tag"], again[0]["snapshot_tag"]);

    let recipe = format!("{RECIPE}[[step]]\nrun = \"echo so; echo no >&2; exit 7\"\n");
    let failed = build(&forkd, &["--keep"], &recipe);
    assert_eq!(failed.status.code(), Some(1));
    let events_of_failed = events(&failed);
    let end = events_of_failed.last().unwrap();
    let kept = forkd.json(&["ls"])[0]["id"].clone();
    let expected = json!({
        "event": "failed", "number": 3, "line": 6, "exit_code": 7, "output": "so\nno\n",
        "sandbox_id": kept, "code": null,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&end[name], value, "{name}: {end}");
    }
    assert!(String::from_utf8_lossy(&failed.stderr).contains("exit code 7"), "people read it, too");

    let recipe = format!("{RECIPE}[[step]]\nstart = \"echo hm; exit 3\"\nready = {{ port = 1 }}\n");
    let end = events(&build(&forkd, &[], &recipe)).pop().unwrap();
    assert_eq!((&end["exit_code"], &end["output"]), (&json!(3), &json!("hm\n")), "{end}");
    let end = events(&build(&forkd, &["-t", "tiny"], RECIPE)).pop().unwrap();
    assert!(end["message"].as_str().unwrap().contains("no build has made"), "{end}");
    assert_eq!((&end["event"], &end["step"]), (&json!("failed"), &Value::Null));
}
