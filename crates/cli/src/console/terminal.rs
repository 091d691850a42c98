//! The terminal that this program was started on.
//!
//! Guarantees: what a guard changed is put back when it is dropped, on every way out that lets a
//! program do something: return, error, panic, a signal that can be caught.

use std::io::{self, IsTerminal as _, Write as _};

use forkd_api::TtySize;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// Where a terminal does not tell its size.
const USUAL: TtySize = TtySize { rows: 24, cols: 80 };

/// Largest size that the interface takes.
const SIDE_MAX: u16 = 9999;

/// Whether a person types and reads here.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// How much the terminal of standard output shows.
pub(crate) fn size() -> TtySize {
    match termios::tcgetwinsize(io::stdout()) {
        Ok(size) => within_limits(size.ws_row, size.ws_col),
        Err(_) => USUAL,
    }
}

fn within_limits(rows: u16, cols: u16) -> TtySize {
    if rows == 0 || cols == 0 {
        return USUAL;
    }
    TtySize { rows: rows.min(SIDE_MAX), cols: cols.min(SIDE_MAX) }
}

/// What keys do while a guard lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Every key is a byte for the program that reads; none is echoed and none makes a signal.
    Raw,
    /// Keys come at once and are not echoed; Ctrl-C and Ctrl-Z do what they always do.
    AtOnce,
}

/// The terminal of standard input in another mode.
pub(crate) struct Mode {
    before: Termios,
    during: Termios,
}

impl Mode {
    pub(crate) fn enter(keys: Keys) -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut during = before.clone();
        match keys {
            Keys::Raw => during.make_raw(),
            Keys::AtOnce => {
                during.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
                during.special_codes[SpecialCodeIndex::VMIN] = 1;
                during.special_codes[SpecialCodeIndex::VTIME] = 0;
            }
        }
        let mode = Self { before, during };
        mode.again()?;
        Ok(mode)
    }

    /// Sets the mode anew: a shell has changed it while this program was stopped.
    pub(crate) fn again(&self) -> io::Result<()> {
        Ok(termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.during)?)
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        // When the terminal is gone there is nothing to put back.
        termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before).ok();
    }
}

/// A page of our own on the terminal; what was there comes back at the end.
pub(crate) struct Page(());

impl Page {
    const ENTER: &str = "\x1b[?1049h\x1b[?25l";
    const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

    pub(crate) fn enter() -> io::Result<Self> {
        write(Self::ENTER)?;
        Ok(Self(()))
    }

    /// Shows these lines and nothing else. Each must fit into a line of the terminal, which is not
    /// in raw mode.
    pub(crate) fn show(&self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        text.push_str(&lines.join("\x1b[K\n"));
        text.push_str("\x1b[K\x1b[J");
        write(&text)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        write(Self::LEAVE).ok();
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_has_the_usual_one_and_none_is_beyond_the_limits() {
        assert_eq!(within_limits(0, 0), USUAL);
        assert_eq!(within_limits(50, 0), USUAL);
        assert_eq!(within_limits(50, 132), TtySize { rows: 50, cols: 132 });
        assert!(within_limits(u16::MAX, u16::MAX).check().is_ok());
    }
}
