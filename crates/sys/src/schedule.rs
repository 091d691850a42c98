//! How the calling thread is scheduled, and who else wants the processors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Makes the calling thread a first-in-first-out real-time thread (`SCHED_FIFO`): it runs until it
/// waits or a thread of higher priority wants its CPU. `priority` is 1 to 99; 1 is above every
/// ordinary thread and below every other real-time one. Children do not inherit it.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` and without a limit `RLIMIT_RTPRIO`; `EINVAL` for another
/// priority.
pub fn become_realtime(priority: u8) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: i32::from(priority) };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // JUSTIFICATION: rustix does not offer sched_setscheduler.
    // SAFETY: the kernel reads the structure, which lives during the call; 0 is this thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct sched_attr`, first version (`include/uapi/linux/sched/types.h`).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const SCHED_ATTR_BYTES: u32 = 48;
const SCHED_OTHER: u32 = 0;
const _: () = assert!(size_of::<SchedAttr>() == 48 && libc::SCHED_OTHER == 0);

/// Asks for short time slices for the calling thread, at an ordinary priority: of two threads that
/// have a right to run, the scheduler prefers the one that asks for less at once. The kernel
/// allows 0.1 to 100 ms; before Linux 6.12 the wish is without effect.
///
/// # Errors
/// What the kernel says.
pub fn ask_for_short_slices(slice: Duration) -> io::Result<()> {
    let attr = SchedAttr {
        size: SCHED_ATTR_BYTES,
        policy: SCHED_OTHER,
        runtime_ns: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        ..SchedAttr::default()
    };
    // JUSTIFICATION: neither rustix nor libc has a wrapper of sched_setattr.
    // SAFETY: the kernel reads the structure, whose size it is told; 0 is this thread, 0 no flags.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// How late a sleep of the calling thread may end. Real-time threads have none.
///
/// # Errors
/// What the kernel says; it knows this call since 2.6.28.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let nanoseconds = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
    let slack = std::num::NonZeroU64::new(nanoseconds);
    Ok(rustix::thread::set_current_timer_slack(slack)?)
}

/// Looks at how many threads of the host want a processor.
#[derive(Debug)]
pub struct RunQueue {
    /// `/proc/loadavg`: its fourth field counts the runnable threads of all processors.
    loadavg: Option<File>,
    processors: u64,
}

impl RunQueue {
    /// Where the system does not tell, the machine counts as crowded.
    #[must_use]
    pub fn open() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Self { loadavg: File::open("/proc/loadavg").ok(), processors }
    }

    /// Whether more threads want to run, the calling one among them, than there are processors. One
    /// short system call.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let mut text = [0u8; 64];
        let read = self.loadavg.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let running = read.and_then(|length| runnable(text.get(..length)?));
        running.is_none_or(|running| running > self.processors)
    }
}

/// The number of runnable threads in the text of `/proc/loadavg`, such as
/// `0.20 0.18 0.12 1/80 11206`.
fn runnable(text: &[u8]) -> Option<u64> {
    let counts = std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(3)?;
    counts.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runnable_threads_are_the_first_half_of_the_fourth_field() {
        assert_eq!(runnable(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(runnable(b"0.20 0.18 0.12\n"), None);
        assert_eq!(runnable(b""), None);
    }

    #[test]
    fn more_busy_threads_than_processors_are_a_crowd() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let queue = RunQueue::open();
        std::thread::scope(|scope| {
            for _ in 0..queue.processors {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let crowded = (0..200).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                queue.is_crowded()
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(crowded);
        });
    }

    #[test]
    fn a_priority_that_does_not_exist_is_refused_whoever_asks() {
        let error = become_realtime(0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(become_realtime(100).is_err());
    }

    #[test]
    fn an_ordinary_thread_may_ask_for_short_slices() {
        std::thread::spawn(|| ask_for_short_slices(Duration::from_micros(100)).unwrap())
            .join()
            .unwrap();
    }

    #[test]
    fn a_thread_with_fine_slack_sleeps_little_longer_than_asked() {
        std::thread::spawn(|| {
            set_timer_slack(Duration::from_micros(1)).unwrap();
            // The best of many: the machine may be busy.
            let best = (0..200).map(|_| {
                let begun = std::time::Instant::now();
                std::thread::sleep(Duration::from_micros(20));
                begun.elapsed()
            });
            let best = best.min().unwrap();
            assert!(best >= Duration::from_micros(20) && best < Duration::from_millis(2));
        })
        .join()
        .unwrap();
    }
}
