//! What a process does to itself before its program begins, so that it is confined from its first
//! instruction on: it enters a cgroup, and leaves the host's network.
//!
//! Does not do: make groups, or decide who is confined.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::UnshareFlags;

/// Makes the program start in the cgroup whose `cgroup.procs` is open for writing in
/// `entrance`: whatever memory it ever has is charged there. To be called before descriptors are
/// given their places in the new process: one of them may take that of `entrance`.
pub fn enter_cgroup(command: &mut Command, entrance: File) {
    let enter = move || -> io::Result<()> {
        // The process that writes.
        rustix::io::write(&entrance, b"0")?;
        Ok(())
    };
    // JUSTIFICATION: a process that is moved after its start has been charged elsewhere until then.
    // SAFETY: the closure makes one system call and touches no memory that another thread may have
    // been changing, no lock and no allocator.
    unsafe { command.pre_exec(enter) };
}

/// Makes the program start in a network namespace of its own, which goes with its last process. It
/// has a loopback device that is down, and nothing else.
pub fn leave_network(command: &mut Command) {
    // JUSTIFICATION: the calling process is to stay where it is.
    // SAFETY: the closure makes one system call and touches no memory that another thread may have
    // been changing, no lock and no allocator.
    unsafe { command.pre_exec(unshare_network) };
}

/// Puts the calling thread into a network namespace of its own, for as long as it lives.
///
/// # Errors
/// What the kernel says: `EPERM` without `CAP_SYS_ADMIN`.
pub fn unshare_network() -> io::Result<()> {
    // JUSTIFICATION: rustix calls it unsafe for another flag, which gives a thread its own table of
    // descriptors.
    // SAFETY: another network namespace changes neither memory nor descriptors of this process.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Makes writing beyond the largest file that this process may write fail with `EFBIG`, here and in
/// the program that it becomes. Otherwise `SIGXFSZ` would end it.
///
/// # Errors
/// What the kernel says.
pub fn fail_writes_beyond_limit() -> io::Result<()> {
    // JUSTIFICATION: no crate in use changes what a signal does without a handler of its own.
    // SAFETY: the signal is ignored; no code of ours runs when it comes.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether this process may make network namespaces: one is made, by a thread that ends with it.
///
/// # Errors
/// What the kernel says: `EPERM` without `CAP_SYS_ADMIN`.
pub fn try_network_namespace() -> io::Result<()> {
    let thread = std::thread::Builder::new().name("netns-probe".to_owned());
    let probe = thread.spawn(unshare_network)?;
    probe.join().unwrap_or_else(|_| Err(io::Error::other("the probe died")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _};

    #[test]
    fn the_program_begins_after_it_has_told_the_group_of_itself() {
        let mut group = tempfile::tempfile().unwrap();
        let mut command = Command::new("true");
        enter_cgroup(&mut command, group.try_clone().unwrap());
        assert!(command.status().unwrap().success());
        let mut told = String::new();
        group.rewind().unwrap();
        group.read_to_string(&mut told).unwrap();
        assert_eq!(told, "0");
    }

    #[test]
    fn a_group_that_takes_nobody_keeps_the_program_from_starting() {
        let mut command = Command::new("true");
        enter_cgroup(&mut command, File::open("/dev/null").unwrap());
        assert!(command.status().is_err(), "it is open for reading only");
    }

    #[test]
    fn the_program_has_a_network_of_its_own_or_does_not_start() {
        let of_us = std::fs::read_link("/proc/self/ns/net").unwrap();
        let mut command = Command::new("readlink");
        leave_network(&mut command);
        let output = command.arg("/proc/self/ns/net").output();
        assert_eq!(output.is_ok(), try_network_namespace().is_ok());
        if let Ok(output) = output {
            let theirs = String::from_utf8(output.stdout).unwrap();
            assert!(theirs.starts_with("net:") && theirs.trim() != of_us.to_str().unwrap());
        }
        assert_eq!(std::fs::read_link("/proc/self/ns/net").unwrap(), of_us, "we stay");
    }
}
