//! Letting an idle guest be idle: what would wake it, or its VMM, although nobody needs it, is
//! turned off. A hundred guests that do nothing share the host's processors with those that work.
//!
//! Does not do: anything about programs. A guest's own settings can still be changed by the image.

use std::fs;
use std::io;
use std::path::Path;

use forkd_sys::interval_timer;

use crate::log;

/// Settings of the kernel below `/proc/sys`.
const SETTINGS: [(&str, &str); 3] = [
    // Twice a second it would be looked at whether memory should be moved together for huge pages.
    ("vm/compaction_proactiveness", "0"),
    // Counters of memory are summed up as often as this, in seconds, not each second.
    ("vm/stat_interval", "30"),
    // A guest that was paused, or whose host is busy, is not locked up.
    ("kernel/soft_watchdog", "0"),
];
const CLOCK_EVENTS: &str = "/sys/devices/system/clockevents";
/// What the kernel calls the interval timer.
const INTERVAL_TIMER: &str = "pit";

/// Turns it off, as far as this kernel can.
pub(super) fn stop_wakeups() {
    for (name, value) in SETTINGS {
        match fs::write(Path::new("/proc/sys").join(name), value) {
            Ok(()) => {}
            // Kernels are built without some of them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => log::failure(&format!("{name}: {error}")),
        }
    }
    if !keeps_time_by_interval_timer(Path::new(CLOCK_EVENTS))
        && let Err(error) = interval_timer::stop()
    {
        log::failure(&format!("interval timer: {error}"));
    }
}

/// Whether the kernel has chosen the interval timer for anything.
fn keeps_time_by_interval_timer(clock_events: &Path) -> bool {
    let Ok(entries) = fs::read_dir(clock_events) else { return true };
    entries.flatten().any(|entry| {
        let device = fs::read_to_string(entry.path().join("current_device"));
        device.is_ok_and(|device| device.trim() == INTERVAL_TIMER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_keeps_time_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(keeps_time_by_interval_timer(&folder.path().join("none")), "nobody knows");
        for (name, device) in [("broadcast", "\n"), ("clockevent0", "lapic\n"), ("uevent", "")] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("current_device"), device).unwrap();
        }
        assert!(!keeps_time_by_interval_timer(folder.path()));
        fs::write(folder.path().join("broadcast/current_device"), "pit\n").unwrap();
        assert!(keeps_time_by_interval_timer(folder.path()));
    }
}
