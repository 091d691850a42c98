//! `stall`: how long a virtual CPU was held up.
//!
//! A thread at real-time priority, alone on a virtual CPU, reads the clock as fast as it can. A gap
//! between two readings is time in which that CPU did not run: a page that the thread writes was
//! being captured, QEMU held the CPU, or the host gave its time to somebody else. The pause window
//! is in no gap as long as the guest's clock stands still in it.
//!
//! When it is told to stop it answers with what it has measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forkd_meter_protocol::{Question, Spinning, Stall};

use crate::control::{self, After};
use crate::gaps::GapLog;
use crate::isolate::Cpus;
use crate::say::say;

/// Clock readings between two looks at whether it is over.
const READINGS: u32 = 256;

/// It ends by itself after this time of the guest.
const LONGEST: Duration = Duration::from_secs(30);

/// Measures until told to stop.
pub(crate) fn run() -> Result<(), String> {
    let cpus = Cpus::take()?;
    cpus.clear();
    let socket = control::socket("stall");
    let listener = control::listen(&socket)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (result, results) = mpsc::channel::<Stall>();
    let told = Arc::clone(&stop);
    // Before we take the CPU: the thread must not be bound to it.
    let asked = thread::Builder::new().name("control".to_owned()).spawn(move || {
        control::serve(&listener, &socket, |question| {
            if question != Question::StopStall {
                return None;
            }
            told.store(true, Ordering::Relaxed);
            results.recv().ok().map(|result| (result, After::Stop))
        });
    });
    let asked = asked.map_err(|error| format!("start a thread: {error}"))?;
    let mut log = GapLog::over(LONGEST);
    let problem = cpus.hold().err().map(|error| error.to_string());
    say(&Spinning { real_time: problem.is_none(), cpu: cpus.ours })?;
    let spun_ns = nanoseconds(spin(&mut log, &stop, LONGEST));
    let measured = Stall { problem, spun_ns, longest_ns: log.within(spun_ns) };
    result.send(measured).map_err(|error| error.to_string())?;
    asked.join().map_err(|_| "the control thread failed".to_owned())
}

/// Reads the clock until told to stop or the time is over; gives the time that it took.
fn spin(log: &mut GapLog, stop: &AtomicBool, most: Duration) -> Duration {
    let begun = Instant::now();
    let mut last = 0;
    loop {
        for _ in 0..READINGS {
            let now = nanoseconds(begun.elapsed());
            log.note(last, now - last);
            last = now;
        }
        if stop.load(Ordering::Relaxed) || last > nanoseconds(most) {
            return Duration::from_nanos(last);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_ends_by_itself_and_covers_its_time() {
        let time = Duration::from_millis(20);
        let mut log = GapLog::over(time);
        let spun = spin(&mut log, &AtomicBool::new(false), time);
        assert!(spun >= time, "{spun:?}");
        let gaps = log.within(nanoseconds(time));
        assert!(gaps.iter().any(|gap| *gap > 0), "{gaps:?}");
    }

    #[test]
    fn spinning_ends_when_told() {
        let mut log = GapLog::over(Duration::from_millis(20));
        let most = Duration::from_secs(10);
        let spun = spin(&mut log, &AtomicBool::new(true), most);
        assert!(spun < most, "{spun:?}");
    }
}
