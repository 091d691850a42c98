//! Domain names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{DestinationError, wrong};
use crate::text::as_text;

/// Bytes of a domain name, without a dot at its end.
const NAME_BYTES_MAX: usize = 253;
/// Bytes of one part of a domain name.
const LABEL_BYTES_MAX: usize = 63;

/// A domain name: lower case, no dot at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainName(String);

impl DomainName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a name below `parent`, at any depth.
    #[must_use]
    pub fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainName {
    type Err = DestinationError;

    fn from_str(value: &str) -> Result<Self, DestinationError> {
        let name = value.strip_suffix('.').unwrap_or(value).to_ascii_lowercase();
        let is_label = |label: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(allowed)
        };
        let labels = || name.split('.');
        // Resolvers read it as an address.
        let like_an_address = labels()
            .next_back()
            .is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x"));
        if name.len() > NAME_BYTES_MAX || !labels().all(is_label) || like_an_address {
            return Err(wrong(value, "write a name such as `api.example.com`, in ASCII"));
        }
        Ok(Self(name))
    }
}

as_text!(DomainName, DestinationError);
