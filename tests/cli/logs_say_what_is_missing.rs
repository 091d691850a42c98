//! Goal: `forkd logs` gives the end of a console, and says how much is missing before it.
//!
//! Method: a guest writes more than is kept; the text, the JSON and the remark on standard error
//! are looked at. Breaks when the beginning is cut without a word.

use std::time::{Duration, Instant};

use crate::forkd::Forkd;

const SOON: Duration = Duration::from_secs(120);
const KEPT: usize = 1 << 20;

/// The kernel writes to the serial port ten times as fast as a program does.
const FLOOD: &str = "echo 8 > /proc/sys/kernel/printk; echo on > /proc/sys/kernel/printk_devkmsg; \
    line=$(printf '%0900d' 7); n=0; \
    while [ $n -lt 1200 ]; do echo $line > /dev/kmsg; n=$((n+1)); done; echo the end > /dev/kmsg";

#[test]
fn the_beginning_of_a_console_that_is_missing_is_told() {
    let mut forkd = Forkd::new();
    forkd.template("tiny", "t", 128);
    forkd.hold_to_contract();
    let sandbox = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(forkd.json(&["logs", &sandbox])["missing_bytes"], 0);
    forkd.ok(&["exec", &sandbox, "--timeout-secs", "120", "--", "/bin/sh", "-c", FLOOD]);
    let begun = Instant::now();
    let output = loop {
        let output = forkd.run(&["logs", &sandbox]);
        assert!(output.status.success());
        if String::from_utf8_lossy(&output.stdout).contains("the end") {
            break output;
        }
        assert!(begun.elapsed() < SOON, "the end is not on the console");
    };
    assert_eq!(output.stdout.len(), KEPT);
    let shown = forkd.json(&["logs", &sandbox]);
    let missing = shown["missing_bytes"].as_u64().unwrap();
    assert!(missing > 0, "nothing is missing");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(&format!("the first {missing} bytes of the console are missing")),
        "{said}"
    );
}
