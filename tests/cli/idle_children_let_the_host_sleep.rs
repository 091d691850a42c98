//! Goal: a child that does nothing hardly wakes its host, so hundreds of them leave its processors
//! to those that work.
//! Method: counts how often the threads of an idle child's VMM are scheduled, until a window of
//! some seconds has few of them. A busy host only makes them fewer.
//! Broken by: a timer of the machine that nobody uses and nobody stops, as the interval timer with
//! its 73 expiries in a second; a poll in the guest agent or in the shim.

use std::fs;
use std::time::Duration;

use crate::forkd::Forkd;
use crate::processes::wait_until;

/// As long as the rarest of what still wakes a guest.
const WINDOW: Duration = Duration::from_secs(5);
/// In a second, of all threads. Of a child that is ten seconds old 20 were counted, and 60 with the
/// interval timer.
const WAKEUPS_MAX: f64 = 40.0;

/// How often the threads of a process have waited for something, in all.
fn waits(pid: u64) -> u64 {
    let of_thread = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    // A thread of QEMU's pool may end meanwhile.
    let status = threads.filter_map(|it| fs::read_to_string(it.path().join("status")).ok());
    status.map(of_thread).sum()
}

#[test]
fn an_idle_child_wakes_its_host_less_than_forty_times_a_second() {
    let forkd = Forkd::new();
    forkd.template("python", "t", 256);
    let children = forkd.json(&["fork", "t"]);
    let pid = children[0]["pid"].as_u64().unwrap();
    wait_until("a window with few wake-ups", || {
        let before = waits(pid);
        std::thread::sleep(WINDOW);
        // Fewer than before, if a thread has ended.
        let wakeups = waits(pid).saturating_sub(before) as f64 / WINDOW.as_secs_f64();
        println!("{wakeups:.1} wake-ups in a second");
        wakeups < WAKEUPS_MAX
    });
}
