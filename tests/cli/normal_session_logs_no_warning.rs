//! Goal: in a session in which nothing goes wrong the daemon's log has no line that a person should
//! look at, and every line of work tells by fields which sandbox, snapshot and operation it is
//! about.
//!
//! Method: the released binary with its log as JSON: start, template, fork, exec, a branch in each
//! mode, delete, stop; refused requests too, because a client's mistake is nothing to look at.
//! Breaks when something expected is logged as WARN or ERROR, or when work runs outside its span.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use forkd_testkit::SOON;
use serde_json::Value;

use crate::forkd::Forkd;

#[test]
fn normal_session_logs_no_warning() {
    let forkd = Forkd::with_variables(&[("FORKD_LOG_FORMAT", "json")]);
    forkd.ok(&["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "128"]);
    let source = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    forkd.ok(&["exec", &source, "--", "/bin/sh", "-c", "echo kept > /root/file"]);
    for mode in ["live", "diff", "full"] {
        forkd.ok(&["branch", &source, "--tag", mode, "--mode", mode, "-n", "1"]);
    }
    forkd.refused(&["fork", "no-such-tag"]);
    forkd.refused(&["template", "build", "tiny", "--tag", "live"]);
    forkd.refused(&["snapshot", "rm", "t"]);
    wait_all_durable(&forkd);
    forkd.ok(&["rm", "--all"]);
    forkd.ok(&["snapshot", "rm", "full"]);
    forkd.ok(&["stop"]);

    let log = std::fs::read_to_string(forkd.home().join("run/daemon.log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let loud: Vec<&Value> =
        lines.iter().filter(|line| line["level"] == "WARN" || line["level"] == "ERROR").collect();
    assert!(loud.is_empty(), "{loud:#?}");

    assert_eq!(about(&lines, "started", &source), fields(&["sandbox", "snapshot"]));
    for tag in ["live", "diff", "full"] {
        let all = fields(&["sandbox", "snapshot", "operation"]);
        assert_eq!(about(&lines, "branched", tag), all, "{tag}");
        assert_eq!(about(&lines, "published", tag), fields(&["snapshot", "operation"]), "{tag}");
    }
    assert_eq!(about(&lines, "built", "t"), fields(&["snapshot", "operation"]));
}

fn wait_all_durable(forkd: &Forkd) {
    let begun = Instant::now();
    let is_durable = |snapshot: &Value| snapshot["durable"] == true;
    while !forkd.json(&["snapshots"]).as_array().unwrap().iter().all(is_durable) {
        assert!(begun.elapsed() < SOON, "a snapshot is not durable");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn fields(names: &[&'static str]) -> BTreeSet<&'static str> {
    names.iter().copied().collect()
}

/// Which ids the spans around the first line with this message and this name carry.
fn about(lines: &[Value], message: &str, name: &str) -> BTreeSet<&'static str> {
    let spans = |line: &Value| line["spans"].as_array().cloned().unwrap_or_default();
    let has = |line: &&Value| {
        let named = |span: &Value| span.as_object().unwrap().values().any(|value| value == name);
        line["fields"]["message"] == message && spans(line).iter().any(named)
    };
    let line = lines.iter().find(has);
    let line = line.unwrap_or_else(|| panic!("no line `{message}` about {name}: {lines:#?}"));
    let carried = |field: &&str| spans(line).iter().any(|span| span[*field].is_string());
    ["sandbox", "snapshot", "operation"].into_iter().filter(carried).collect()
}
