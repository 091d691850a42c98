//! What the end of a time to live does.

use serde::{Deserialize, Serialize};

/// What becomes of a sandbox when its time to live is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtEnd {
    /// It is removed.
    #[default]
    Remove,
    /// Its vCPUs stop, and it has no end any more.
    Pause,
}
