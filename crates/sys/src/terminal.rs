//! Programs that run on a terminal of their own.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the program the leader of a new session whose terminal is its standard input, which must
/// be a terminal that no other session has. It must not be asked for a process group besides. The
/// terminal's control characters have their effect, whatever our own parent had us ignore.
pub fn lead_session(command: &mut Command) {
    let lead = || -> io::Result<()> {
        rustix::process::setsid()?;
        // JUSTIFICATION: the standard library has no handle of standard input that takes no lock.
        // SAFETY: standard input was set before this runs, and is open until the program begins.
        let stdin = unsafe { BorrowedFd::borrow_raw(0) };
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP] {
            // JUSTIFICATION: an ignored signal stays ignored in a program that begins.
            // SAFETY: `signal` may be called between fork and exec, and SIG_DFL runs no code of
            // ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(rustix::process::ioctl_tiocsctty(stdin)?)
    };
    // JUSTIFICATION: only the new process itself can take a terminal, before the program begins.
    // SAFETY: the closure makes a few system calls and touches no memory that another thread may
    // have been changing, no lock and no allocator.
    unsafe { command.pre_exec(lead) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn the_program_has_a_terminal_of_its_own() {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let ours = openpt(flags).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "[ -t 0 ] && echo told > /dev/tty"]);
        command.stdin(theirs.try_clone().unwrap()).stdout(theirs);
        lead_session(&mut command);
        let mut child = command.spawn().unwrap();
        drop(command);
        assert!(child.wait().unwrap().success());
        let mut text = [0; 16];
        let length = File::from(ours).read(&mut text).unwrap();
        assert_eq!(&text[..length], b"told\r\n");
    }
}
