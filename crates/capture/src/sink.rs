//! Where captured pages go.

use std::io;

use forkd_types::PageIndex;

/// Takes captured pages. Each page is offered at most once.
pub trait PageSink: Send {
    /// Stores consecutive pages; `data` is a whole number of them, none of them all zero.
    ///
    /// # Errors
    /// When they cannot be stored; the capture is given up.
    fn write(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()>;
}
