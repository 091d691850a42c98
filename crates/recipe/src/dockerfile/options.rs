//! What is decided outside of a Dockerfile.

use std::collections::BTreeMap;

/// Values for `ARG`, by name.
pub type Arguments = BTreeMap<String, String>;

/// Whether what an image would run becomes a process that runs in every child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFrom {
    /// ENTRYPOINT and CMD are passed over.
    Nothing,
    /// They are started last.
    Command,
}
