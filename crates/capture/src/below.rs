//! What a capture is a difference to.

use std::io;

use forkd_types::PageIndex;

/// The content that guest RAM had at an earlier instant: that of the layers below.
pub trait PagesBelow: Send {
    /// Compares consecutive pages with their earlier content: sets `same` to one entry for each
    /// page of `data`.
    ///
    /// # Errors
    /// When the earlier content cannot be read; the capture is given up.
    fn compare(&mut self, start: PageIndex, data: &[u8], same: &mut Vec<bool>) -> io::Result<()>;
}

/// Nothing is below: every page is new, and a page that is not stored is zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct NothingBelow;

impl PagesBelow for NothingBelow {
    fn compare(&mut self, _: PageIndex, data: &[u8], same: &mut Vec<bool>) -> io::Result<()> {
        same.clear();
        same.resize(data.len() / 4096, false);
        Ok(())
    }
}
