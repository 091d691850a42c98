//! Processes that tests wait for and end.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::forkd::Forkd;

/// Longest wait for something that must happen soon; never reached when all is well.
const SOON: Duration = Duration::from_secs(120);

/// Waits until something holds.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there. A zombie that nobody has waited for yet has ended.
pub(crate) fn runs(pid: u64) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Kills a process and waits until it is gone.
pub(crate) fn kill_and_wait(pid: u64) {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    rustix::process::kill_process(process, Signal::KILL).unwrap();
    wait_until(&format!("process {pid} ends"), || !runs(pid));
}

/// Kills the daemon as anybody could.
pub(crate) fn kill_daemon(forkd: &Forkd) {
    kill_and_wait(forkd.daemon_pid().into());
}
