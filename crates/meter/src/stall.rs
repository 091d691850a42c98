//! `stall`: how long a virtual CPU was held up.
//!
//! A thread at real-time priority, alone on a virtual CPU, reads the clock as fast as it can. A gap
//! between two readings is time in which that CPU did not run: a page that the thread writes was
//! being captured, QEMU held the CPU, or the host gave its time to somebody else. The pause window
//! is in no gap as long as the guest's clock stands still in it.
//!
//! It knows one word: `stop`, answered with what was measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::StallOptions;
use crate::control::{self, After};
use crate::gaps::GapLog;
use crate::isolate::Cpus;
use crate::output::say;

/// Clock readings between two looks at whether it is over.
const READINGS: u32 = 256;

/// Measures until told to stop.
pub(crate) fn run(options: StallOptions) -> Result<(), String> {
    let cpus = Cpus::take()?;
    cpus.clear();
    let socket = control::socket("stall");
    let listener = control::listen(&socket)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (result, results) = mpsc::channel::<String>();
    let told = Arc::clone(&stop);
    // Before we take the CPU: the thread must not be bound to it.
    let asked = thread::Builder::new().name("control".to_owned()).spawn(move || {
        control::serve(&listener, &socket, |word| {
            told.store(word == "stop", Ordering::Relaxed);
            let result = (word == "stop").then(|| results.recv().ok()).flatten()?;
            Some((result, After::Stop))
        });
    });
    let asked = asked.map_err(|error| format!("start a thread: {error}"))?;
    let mut log = GapLog::new(options.most_ms);
    let problem = cpus.hold().err().map(|error| error.to_string());
    say(&format!(r#"{{"real_time":{},"cpu":{}}}"#, problem.is_none(), cpus.ours))?;
    let spun = spin(&mut log, &stop, Duration::from_millis(options.most_ms));
    let spun_ns = u64::try_from(spun.as_nanos()).unwrap_or(u64::MAX);
    let problem = problem.map_or("null".to_owned(), |text| format!("{text:?}"));
    let gaps = log.to_json(spun_ns);
    let line = format!(r#"{{"problem":{problem},"spun_ns":{spun_ns},"longest_ns":{gaps}}}"#);
    result.send(line).map_err(|error| error.to_string())?;
    asked.join().map_err(|_| "the control thread failed".to_owned())
}

/// Reads the clock until told to stop or the time is over; gives the time that it took.
fn spin(log: &mut GapLog, stop: &AtomicBool, most: Duration) -> Duration {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_ends_by_itself_and_covers_its_time() {
        let mut log = GapLog::new(20);
        let spun = spin(&mut log, &AtomicBool::new(false), Duration::from_millis(20));
        assert!(spun >= Duration::from_millis(20), "{spun:?}");
        let text = log.to_json(20_000_000);
        assert!(text.trim_matches(['[', ']']).split(',').any(|gap| gap != "0"), "{text}");
    }

    #[test]
    fn spinning_ends_when_told() {
        let mut log = GapLog::new(20);
        let most = Duration::from_secs(10);
        let spun = spin(&mut log, &AtomicBool::new(true), most);
        assert!(spun < most, "{spun:?}");
    }
}
