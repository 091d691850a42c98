//! What `tidy` tells.

/// Something to correct.
#[derive(Debug, PartialEq)]
pub(super) struct Finding {
    /// Relative to the root.
    pub(super) file: String,
    /// From 1.
    pub(super) line: usize,
    pub(super) message: String,
}
