//! Terminals: our end for the host, the other end for a program.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What the terminal takes for the end of its input while the program leaves it as it is (Ctrl-D).
pub(crate) const END_OF_INPUT: u8 = 4;

/// What programs believe to talk to unless the host says otherwise.
pub(crate) const KIND_DEFAULT: (&str, &str) = ("TERM", "xterm-256color");

/// A new terminal.
pub(crate) struct Terminal {
    /// Our end; it does not block.
    pub(crate) ours: OwnedFd,
    /// The program's end.
    pub(crate) theirs: OwnedFd,
}

impl Terminal {
    pub(crate) fn open(size: Winsize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        tcsetwinsize(&ours, size)?;
        fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(Self { ours, theirs })
    }
}

pub(crate) fn size(rows: u16, cols: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}
