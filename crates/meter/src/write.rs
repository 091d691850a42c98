//! `write`: writes pages all the time and counts them.
//!
//! Its answer is the pages written so far and the guest's time, so that two answers give the
//! throughput between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forkd_meter_protocol::{PAGES_PER_MIB, Question, Rate, Write, Written};

use crate::area::Area;
use crate::control::{self, After};
use crate::say::say;

/// At full speed, pages between two updates of the count.
const BATCH_PAGES: usize = 64;

/// At a given rate, how often pages are written.
const PERIOD: Duration = Duration::from_millis(5);

/// Periods of a second.
const PERIODS_PER_SECOND: u64 = 200;

const _: () = assert!(PERIOD.as_millis() * PERIODS_PER_SECOND as u128 == 1000);

#[derive(Debug, Default)]
struct Shared {
    pages: AtomicU64,
    stop: AtomicBool,
}

/// Writes for as long as the guest lives.
pub(crate) fn run(options: Write) -> Result<(), String> {
    let socket = control::socket("write");
    let listener = control::listen(&socket)?;
    let area = Area::filled(options.mib)?;
    let shared = Arc::new(Shared::default());
    let seen = Arc::clone(&shared);
    let writer = thread::Builder::new()
        .name("writer".to_owned())
        .spawn(move || write(area, options, &seen))
        .map_err(|error| format!("start a thread: {error}"))?;
    let begun = Instant::now();
    say(&count(&shared, begun))?;
    control::serve(&listener, &socket, |question| {
        let asked = question == Question::CountWritten;
        asked.then(|| (count(&shared, begun), After::Continue))
    });
    shared.stop.store(true, Ordering::Relaxed);
    writer.join().map_err(|_| "the writer failed".to_owned())
}

fn count(shared: &Shared, begun: Instant) -> Written {
    let pages = shared.pages.load(Ordering::Relaxed);
    Written { pages, at_ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX) }
}

fn write(mut area: Area, options: Write, shared: &Shared) {
    let mut due = Instant::now();
    let mut owed = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let pages = match options.rate {
            Rate::Max => BATCH_PAGES,
            Rate::MibPerSecond(rate) => {
                due = wait_until(due + PERIOD);
                pages_due(rate.get().into(), &mut owed)
            }
        };
        area.write(pages, options.order, options.touch);
        shared.pages.fetch_add(pages as u64, Ordering::Relaxed);
    }
}

/// How many pages are due in a period at `rate` MiB/s; `owed` carries what is less than a page, in
/// pages per second.
fn pages_due(rate: u64, owed: &mut u64) -> usize {
    *owed += rate * PAGES_PER_MIB;
    let pages = *owed / PERIODS_PER_SECOND;
    *owed %= PERIODS_PER_SECOND;
    usize::try_from(pages).unwrap_or(usize::MAX)
}

/// Sleeps until `due`. When that is over already, time begins anew: what could not be written in
/// time is not written later, or a stall would be followed by a rush that hides it.
fn wait_until(due: Instant) -> Instant {
    let now = Instant::now();
    if due <= now {
        return now;
    }
    thread::sleep(due - now);
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    use forkd_meter_protocol::{Order, Touch};

    #[test]
    fn the_rate_is_kept_down_to_parts_of_a_page() {
        for rate in [1, 3, 100, 2000] {
            let mut owed = 0;
            let second: usize = (0..200).map(|_| pages_due(rate, &mut owed)).sum();
            assert_eq!(second as u64, rate * 256, "{rate} MiB/s");
        }
    }

    #[test]
    fn what_is_late_is_not_made_up_for() {
        let now = Instant::now();
        let late = now.checked_sub(Duration::from_secs(5)).unwrap_or(now);
        assert!(wait_until(late) >= now);
    }

    #[test]
    fn pages_are_counted_while_they_are_written() {
        let (order, touch) = (Order::Random, Touch::Page);
        let options = Write { mib: NonZeroU64::MIN, rate: Rate::Max, order, touch };
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let area = Area::filled(NonZeroU64::MIN).unwrap();
        let writer = thread::spawn(move || write(area, options, &seen));
        while shared.pages.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        shared.stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    }
}
