//! The frequency of the processor's time stamp counter.
//!
//! An emulated guest that calibrates the counter itself does so against an emulated timer, whose
//! interrupts a loaded host delivers late or in bursts; it then has a wrong clock or waits forever.
//! So it is told. `/proc/cpuinfo` shows the current clock of a core, which is another thing.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Long enough that reading the two clocks 100 ns apart is an error of 2 in a million.
const MEASURED_FOR: Duration = Duration::from_millis(50);

/// Ticks in a millisecond, measured once against the monotonic clock.
#[must_use]
pub fn kilohertz() -> u64 {
    static KILOHERTZ: OnceLock<u64> = OnceLock::new();
    *KILOHERTZ.get_or_init(|| {
        let (begin_ticks, begin) = both_clocks();
        std::thread::sleep(MEASURED_FOR);
        let (end_ticks, end) = both_clocks();
        let nanoseconds = (end - begin).as_nanos().max(1);
        let ticks = u128::from(end_ticks.wrapping_sub(begin_ticks));
        u64::try_from(ticks * 1_000_000 / nanoseconds).unwrap_or(u64::MAX)
    })
}

/// Both clocks at the same moment: of several readings the one with the least between them.
fn both_clocks() -> (u64, Instant) {
    let read = |_| {
        let before = ticks();
        let now = Instant::now();
        let after = ticks();
        (after.wrapping_sub(before), (before.wrapping_add(after.wrapping_sub(before) / 2), now))
    };
    let best = (0..16).map(read).min_by_key(|(between, _)| *between);
    best.map_or_else(|| (ticks(), Instant::now()), |(_, clocks)| clocks)
}

fn ticks() -> u64 {
    // JUSTIFICATION: there is no safe way to read the counter.
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_predicts_the_counter_within_a_thousandth() {
        let kilohertz = kilohertz();
        let (begin_ticks, begin) = both_clocks();
        std::thread::sleep(Duration::from_millis(200));
        let (end_ticks, end) = both_clocks();
        let predicted = u128::from(kilohertz) * (end - begin).as_nanos() / 1_000_000;
        let counted = u128::from(end_ticks - begin_ticks);
        assert!(predicted.abs_diff(counted) * 1000 < counted, "{predicted} and {counted} ticks");
    }
}
