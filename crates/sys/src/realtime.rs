//! Real-time scheduling of the calling thread.

use std::io;

/// Makes the calling thread a first-in-first-out real-time thread (`SCHED_FIFO`): it runs until it
/// waits or a thread of higher priority wants its CPU. `priority` is 1 to 99.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`; `EINVAL` for another priority.
pub fn take_first_in_first_out(priority: u8) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: i32::from(priority) };
    // JUSTIFICATION: no safe wrapper of this system call exists.
    // SAFETY: 0 means the calling thread; the parameter outlives the call, which only reads it.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_priority_that_does_not_exist_is_refused_whoever_asks() {
        let error = super::take_first_in_first_out(0).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(super::take_first_in_first_out(100).is_err());
    }
}
