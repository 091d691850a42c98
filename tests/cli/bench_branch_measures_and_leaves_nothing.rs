//! Goal: `forkd bench branch` measures every figure that it promises, from host and guest, and its
//! daemon, its VMs and its files are gone afterwards, also when it is interrupted.
//!
//! Method: a small guest, few iterations, a directory for its durable files and one for its hot
//! layers that must be empty at the end. Breaks when a figure is missing without a reason, when the
//! stall meter cannot have its CPU, when the load in the guest is not felt, or when anything
//! outlives the command.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bench_places::Bench;

fn rows_of<'a>(result: &'a Value, mode: &str) -> Vec<&'a Value> {
    result["rows"].as_array().unwrap().iter().filter(|row| row["mode"] == mode).collect()
}

#[test]
fn every_figure_is_measured_under_load_and_nothing_is_left() {
    let bench = Bench::new();
    let load = ["--dirty-mib", "8", "--write-load", "20", "--write-area-mib", "8"];
    let store = ["--store", bench.store.path().to_str().unwrap()];
    let more = ["--json", "--iterations", "3", "--mode", "live,diff", "--wait", "ready"];
    let output = bench.branch(&[&load[..], &store, &more].concat()).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    bench.assert_nothing_is_left();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["complete"], true);
    assert_eq!(result["rows"].as_array().unwrap().len(), 9);
    for mode in ["live", "diff"] {
        let rows = rows_of(&result, mode);
        assert_eq!(rows.len(), 3);
        for row in rows {
            assert_complete(row);
        }
    }
    for row in rows_of(&result, "floor") {
        assert!(row["guest_gap_ms"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["pause_ms"].is_null() && row["note"] != "", "{row}");
    }
    let summary = result["summary"].as_array().unwrap();
    assert!(summary.iter().any(|entry| entry["figure"] == "pause_ms" && entry["n"] == 3));
}

/// A figure is a positive number, or its absence is explained.
fn assert_complete(row: &Value) {
    let note = row["note"].as_str().unwrap();
    for (name, value) in row.as_object().unwrap() {
        assert!(!value.is_null() || note.contains(&format!("{name}: ")), "{name} in {row}");
    }
    for name in [
        "pause_ms",
        "phases_ms.pause",
        "round_trip_ms",
        "ready_ms",
        "durable_ms",
        "guest_gap_ms",
        "writer_before_mib_per_s",
        "writer_after_mib_per_s",
    ] {
        assert!(row[name].as_f64().is_some_and(|value| value > 0.0), "{name} in {row}");
    }
    // The area that is written anew before each branch, and what the guest wrote besides.
    assert!(row["dirty_bytes"].as_u64().unwrap() >= 8 << 20, "{row}");
    assert!(row["stored_bytes"].as_u64().unwrap() >= 8 << 20, "{row}");
    assert!(row["writer_before_mib_per_s"].as_f64().unwrap() < 30.0, "{row}");
}

#[test]
fn without_the_stall_meter_one_cpu_is_enough_and_the_row_says_what_is_missing() {
    let bench = Bench::new();
    let more = ["--json", "--no-gap", "--vcpus", "1", "--iterations", "1", "--chain"];
    let output = bench.branch(&more).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "one for each wait, and no floor");
    for row in rows {
        assert!(row["pause_ms"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["guest_gap_ms"].is_null(), "{row}");
        assert!(row["note"].as_str().unwrap().contains("--no-gap"), "{row}");
    }
    bench.assert_nothing_is_left();
}

#[test]
fn a_vmm_that_is_held_up_is_seen_as_a_gap_in_the_guest() {
    const HELD: Duration = Duration::from_millis(300);
    // A busy host makes this longer; it must stay well below the second of a window.
    const LET_GO: Duration = Duration::from_millis(200);
    let bench = Bench::new();
    let mut child = bench.branch(&["--json", "--iterations", "1", "--wait", "resumed"]);
    // In every window of a second the VMM is stopped at least once.
    while child.try_wait().unwrap().is_none() {
        // Not the guest that boots: it measures its clocks by each other meanwhile.
        let mut vmms = bench.vmms();
        vmms.retain(|vmm| {
            let line = std::fs::read(format!("/proc/{}/cmdline", vmm.as_raw_nonzero()));
            line.is_ok_and(|line| line.windows(9).any(|word| word == b"-incoming"))
        });
        let send = |signal| {
            for vmm in &vmms {
                // It may have ended meanwhile.
                kill_process(*vmm, signal).ok();
            }
        };
        send(Signal::STOP);
        std::thread::sleep(HELD);
        send(Signal::CONT);
        std::thread::sleep(LET_GO);
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let gap_ms = row["guest_gap_ms"].as_f64().unwrap();
        assert!(gap_ms > HELD.as_secs_f64() * 900.0, "{gap_ms} in {row}");
    }
}

#[test]
fn an_interrupt_ends_the_daemon_and_its_vms_and_removes_their_files() {
    let bench = Bench::new();
    let child = bench.branch(&["--iterations", "1000"]);
    let begun = Instant::now();
    while bench.vmms().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no VM was started");
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("interrupted"), "{errors}");
    bench.assert_nothing_is_left();
}

#[test]
fn a_guest_with_one_cpu_and_a_missing_meter_are_refused_with_a_remedy() {
    let bench = Bench::new();
    for (more, word) in
        [(["--vcpus", "1"], "virtual CPU"), (["--meter", "/nonexistent"], "/nonexistent")]
    {
        let output = bench.branch(&more).wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{more:?}");
        assert!(errors.contains(word) && errors.contains("hint: "), "{errors}");
        bench.assert_nothing_is_left();
    }
}
