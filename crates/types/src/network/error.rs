//! What is wrong with an entry of a policy.

use crate::id::shown;

/// Why an entry of a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is no destination of a network policy: {remedy}")]
pub struct DestinationError {
    /// What was given, shortened to a printable length.
    pub entry: String,
    /// What to write instead.
    pub remedy: String,
}

pub(super) fn wrong(entry: &str, remedy: &str) -> DestinationError {
    DestinationError { entry: shown(entry), remedy: remedy.to_owned() }
}
