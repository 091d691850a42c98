//! Processes in namespaces of their own, made by a process that has one thread.
//!
//! Guarantees: nothing is cloned while another thread runs. So the copy may do whatever
//! the original may: no lock is held by a thread that the copy does not have.

use std::io;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Namespaces, as `clone(2)` and `unshare(2)` name them.
pub use rustix::thread::UnshareFlags as Namespaces;

/// Starts a process in new `namespaces` that runs `child` and exits with the code that it gives,
/// unless it executes a program. Its parent is that of the calling process (`CLONE_PARENT`), which
/// can wait for it as for its own.
///
/// # Errors
/// What the kernel says; and when the calling process has more than one thread.
pub fn start_sibling(namespaces: Namespaces, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    require_one_thread()?;
    let flags = namespaces.bits().cast_signed() | libc::CLONE_PARENT | libc::SIGCHLD;
    // JUSTIFICATION: no wrapper offers CLONE_PARENT, and std cannot start a process elsewhere.
    // SAFETY: without CLONE_VM the child has a copy of this process's memory, and with a null stack
    // it goes on on its copy of this one, as after fork(2). There is no other thread whose locks
    // the copy could inherit.
    let made = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    match made {
        0 => {
            let code = child();
            // JUSTIFICATION: what the original has registered to run at its exit is not the copy's.
            // SAFETY: the call does not return and runs no code of this process.
            unsafe { libc::_exit(code) }
        }
        -1 => Err(io::Error::last_os_error()),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
        }
    }
}

/// Moves the calling thread into new `namespaces`: a process that has one thread.
///
/// # Errors
/// What the kernel says.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // JUSTIFICATION: rustix calls it unsafe for a flag that gives a thread its own descriptors.
    // SAFETY: that flag is taken away.
    Ok(unsafe { rustix::thread::unshare_unsafe(namespaces - UnshareFlags::FILES) }?)
}

/// Makes every descriptor from `first` on close when this process executes a program.
///
/// # Errors
/// What the kernel says: `ENOSYS` before Linux 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // JUSTIFICATION: rustix does not offer close_range.
    // SAFETY: no descriptor is closed now, and no memory is touched.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn require_one_thread() -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads == 1 {
        return Ok(());
    }
    Err(io::Error::other(format!("this process has {threads} threads, and may have only one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_cloned() {
        // The harness has a thread besides this one.
        let error = start_sibling(Namespaces::empty(), || 0).unwrap_err();
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
