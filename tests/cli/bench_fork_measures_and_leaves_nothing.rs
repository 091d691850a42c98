//! Goal: `forkd bench fork` measures every figure that it promises, of children of a snapshot and
//! of a running sandbox; a child that nobody has used has little memory of its own; and the daemon,
//! its VMs and its files are gone afterwards, also when a child gives the wrong answer.
//!
//! Method: a small guest, three children, directories that must be empty at the end. Breaks when a
//! figure is missing without a reason, when the time of vCPUs cannot be told from that of the VMM,
//! when a VMM keeps a kernel that no child needs, or when anything outlives the command.

use serde_json::Value;

use crate::bench_places::Bench;

/// More than a VMM needs with a guest that has only come up, and less than with what it must not
/// have: a kernel alone takes 14 MiB.
const PRIVATE_BYTES_MAX: f64 = (22 << 20) as f64;

fn measured(bench: &Bench, more: &[&str]) -> Value {
    let output = bench.fork(&[&["--json", "-n", "3"], more].concat()).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    bench.assert_nothing_is_left();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The row of all children, and those of each.
fn rows(result: &Value) -> (&Value, &[Value]) {
    let rows = result["rows"].as_array().unwrap();
    let (all, children) = rows.split_first().unwrap();
    assert_eq!((all["kind"].as_str(), children.len()), (Some("all"), 3), "{result}");
    assert!(children.iter().all(|row| row["kind"] == "child"), "{result}");
    (all, children)
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

#[test]
fn every_figure_is_measured_and_nothing_is_left() {
    let result = measured(&Bench::new(), &["--idle-secs", "1"]);
    assert_eq!(result["complete"], true);
    let (all, children) = rows(&result);
    let [started, first, last] =
        ["started_ms", "first_answered_ms", "last_answered_ms"].map(|name| figure(all, name));
    assert!(0.0 < started && started < first && first <= last, "{all}");
    for name in ["children_per_s_per_cpu", "daemon_cpu_ms"] {
        assert!(figure(all, name) > 0.0, "{name} in {all}");
    }
    figure(all, "host_memory_bytes");
    for child in children {
        assert_is_complete(child);
        let answered = figure(child, "answered_ms");
        assert!((first..=last).contains(&answered), "{answered} in {all}");
        assert!(figure(child, "start_ms") <= started, "{child} in {all}");
    }
    let summary = result["summary"].as_array().unwrap();
    assert!(summary.iter().any(|entry| entry["figure"] == "answered_ms" && entry["n"] == 3));
}

fn assert_is_complete(child: &Value) {
    for name in [
        "vmm_cpu_ms",
        "guest_cpu_ms",
        "private_start_bytes",
        "private_answered_bytes",
        "private_idle_bytes",
    ] {
        assert!(figure(child, name) > 0.0, "{name} in {child}");
    }
    figure(child, "idle_cpu_percent");
    let phases = child.as_object().unwrap().iter().filter(|(name, _)| name.contains("phases_ms."));
    let together: f64 = phases.map(|(_, took)| took.as_f64().unwrap()).sum();
    let start = figure(child, "start_ms");
    assert!((together - start).abs() < 0.001, "{together} of {child}");
    assert!(figure(child, "private_start_bytes") < PRIVATE_BYTES_MAX, "{child}");
    for when in ["start", "answered", "idle"] {
        let private = figure(child, &format!("private_{when}_bytes"));
        assert!(private < figure(child, &format!("proportional_{when}_bytes")), "{child}");
    }
}

#[test]
fn children_of_a_running_sandbox_are_measured_and_what_is_left_out_says_so() {
    let more =
        ["--from", "sandbox", "--depth", "2", "--idle-secs", "0", "--exec", "sh -c 'exit 0'"];
    let result = measured(&Bench::new(), &more);
    let (_, children) = rows(&result);
    for child in children {
        assert!(figure(child, "answered_ms") > figure(child, "start_ms"), "{child}");
        assert!(child["private_idle_bytes"].is_null(), "{child}");
        assert!(child["note"].as_str().unwrap().contains("private_idle_bytes: "), "{child}");
    }
}

#[test]
fn a_wrong_first_answer_ends_the_measurement_and_nothing_is_left() {
    let bench = Bench::new();
    let output = bench.fork(&["-n", "1", "--exec", "false"]).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("exit code 1"), "{errors}");
    bench.assert_nothing_is_left();
}
