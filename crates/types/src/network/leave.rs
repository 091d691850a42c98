//! The most that an operator lets any sandbox reach.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;

/// The most that an operator lets any sandbox reach: the switch `--network` of `forkd serve`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum NetworkLeave {
    /// Nothing.
    None,
    /// Public addresses.
    #[default]
    Public,
    /// Private ranges and the host's own services as well, where a policy names them.
    Any,
}

impl fmt::Display for NetworkLeave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Public => "public",
            Self::Any => "any",
        })
    }
}

/// The given word is no leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a reach: use `none`, `public` or `any`")]
pub struct UnknownLeave(String);

impl FromStr for NetworkLeave {
    type Err = UnknownLeave;

    fn from_str(value: &str) -> Result<Self, UnknownLeave> {
        match value {
            "none" => Ok(Self::None),
            "public" => Ok(Self::Public),
            "any" => Ok(Self::Any),
            _ => Err(UnknownLeave(shown(value))),
        }
    }
}
