//! How the calling thread is scheduled.

use std::io;
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

/// How late a sleep of the calling thread may end. Real-time threads have none.
///
/// # Errors
/// What the kernel says; it knows this call since 2.6.28.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let nanoseconds = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
    let slack = std::num::NonZeroU64::new(nanoseconds);
    Ok(rustix::thread::set_current_timer_slack(slack)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_that_does_not_exist_is_refused_whoever_asks() {
        let error = become_realtime(0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(become_realtime(100).is_err());
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
