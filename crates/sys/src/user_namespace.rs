//! User namespaces that this process owns: found by the processes in them, and entered.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `NS_GET_PARENT` of `linux/nsfs.h`.
const GET_PARENT: libc::Ioctl = 0xb702;

/// The user namespace in which that of a process was made.
///
/// # Errors
/// What the kernel says: `EPERM` where it is none that this process may know of.
pub fn parent_of(pid: Pid) -> io::Result<OwnedFd> {
    let own = File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero()))?;
    // JUSTIFICATION: rustix does not offer this command.
    // SAFETY: the command takes no argument and touches no memory.
    let parent = unsafe { libc::ioctl(own.as_raw_fd(), GET_PARENT) };
    if parent == -1 {
        return Err(io::Error::last_os_error());
    }
    // JUSTIFICATION: as above; the kernel gives a descriptor as a number.
    // SAFETY: it is new, so nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(parent) })
}

/// Moves this process, which has one thread, into a user namespace. There it has all capabilities,
/// if its user has made that one.
///
/// # Errors
/// What the kernel says.
pub fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_namespace_has_no_parent() {
        // Where this one is another's, its parent is none that may be known here either.
        let error = parent_of(rustix::process::getpid()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
