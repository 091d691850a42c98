//! To whom things belong.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limit;
use crate::text::as_text;

/// The owner of what the daemon's own user and root make.
const DAEMON: &str = "daemon";

/// Why a string names no owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{value}` is no owner: use a letter or digit, then at most {max} letters, digits, `-`, `_`, \
     `.`, `:`, `@` or `+` in all",
    max = limit::OWNER_CHARS_MAX
)]
pub struct OwnerError {
    /// What was given, shortened to a printable length.
    pub value: String,
}

/// Somebody to whom sandboxes, snapshots and operations belong: by default the daemon's own user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner(String);

impl Owner {
    /// A user of this machine.
    #[must_use]
    pub fn of_user(uid: u32) -> Self {
        Self(format!("uid:{uid}"))
    }

    /// Whether it is the daemon's own user.
    #[must_use]
    pub fn is_daemon(&self) -> bool {
        self.0 == DAEMON
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The daemon's own user: to it belongs what was made before there were owners.
impl Default for Owner {
    fn default() -> Self {
        Self(DAEMON.to_owned())
    }
}

impl FromStr for Owner {
    type Err = OwnerError;

    fn from_str(value: &str) -> Result<Self, OwnerError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@+".contains(&b);
        let fits = (1..=limit::OWNER_CHARS_MAX).contains(&value.len());
        let begins = value.starts_with(|c: char| c.is_ascii_alphanumeric());
        if fits && begins && value.bytes().all(allowed) {
            return Ok(Self(value.to_owned()));
        }
        let shown = value.chars().take(limit::OWNER_CHARS_MAX).flat_map(char::escape_default);
        Err(OwnerError { value: shown.collect() })
    }
}

as_text!(Owner, OwnerError);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_short_word_that_cannot_be_taken_for_a_tag_with_an_owner() {
        for good in ["ann", "uid:1000", "ann@example.org", "ci-2", &"x".repeat(64)] {
            assert!(good.parse::<Owner>().is_ok(), "{good}");
        }
        for bad in ["", "..", "a/b", "a b", "é", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<Owner>().is_err(), "{bad:?}");
        }
        assert!(Owner::default().is_daemon() && !Owner::of_user(0).is_daemon());
    }
}
