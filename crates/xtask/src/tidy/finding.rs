//! What `tidy` tells.

use std::fmt;

/// Something to correct.
#[derive(Debug, PartialEq)]
pub(super) struct Finding {
    /// Relative to the root.
    pub(super) file: String,
    /// From 1.
    pub(super) line: usize,
    pub(super) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
