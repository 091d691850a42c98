//! Identifiers. Each is a checked string of its own type, so that a sandbox id cannot name a layer
//! and nothing that came from a client reaches a path unchecked.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::as_text;

/// Why a string is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{value}` is not a {kind} id: expected `{prefix}` followed by {digits} hexadecimal digits"
)]
pub struct IdError {
    /// What was given, shortened to a printable length.
    pub value: String,
    /// The kind of id that was expected.
    pub kind: &'static str,
    /// The prefix that such an id has.
    pub prefix: &'static str,
    /// How many hexadecimal digits follow it.
    pub digits: usize,
}

/// At most this many characters of a rejected value are repeated in an error, escapes counted.
const SHOWN_CHARS_MAX: usize = 80;

pub(crate) fn shown(value: &str) -> String {
    value.chars().flat_map(char::escape_default).take(SHOWN_CHARS_MAX).collect()
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal, $digits:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A fresh random id.
            ///
            /// # Panics
            /// When the operating system has no entropy source; nothing works then.
            #[must_use]
            pub fn random() -> Self {
                let mut bytes = [0u8; $digits / 2];
                getrandom::fill(&mut bytes).expect("the operating system provides random bytes");
                Self(format!("{}{}", $prefix, hex::encode(bytes)))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(value: &str) -> Result<Self, IdError> {
                match value.strip_prefix($prefix) {
                    Some(rest) if rest.len() == $digits && is_lower_hex(rest) => {
                        Ok(Self(value.to_owned()))
                    }
                    _ => Err(IdError {
                        value: shown(value),
                        kind: $kind,
                        prefix: $prefix,
                        digits: $digits,
                    }),
                }
            }
        }

        as_text!($name, IdError);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id_type!(
    /// Names one sandbox for as long as the store exists.
    SandboxId, "sandbox", "sb-", 12
);
id_type!(
    /// Names one immutable memory layer.
    LayerId, "layer", "ly-", 16
);
id_type!(
    /// Names one disk overlay. It looks like a layer's id: files and manifests on disk are so
    /// named, and each kind has a directory and a field of its own.
    OverlayId, "disk overlay", "ly-", 16
);
id_type!(
    /// Names one long request.
    OperationId, "operation", "op-", 12
);
id_type!(
    /// Names one background process of a sandbox.
    ProcessId, "process", "pr-", 12
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_parse_back_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().parse::<SandboxId>(), Ok(a.clone()));
        assert!(a.as_str().parse::<LayerId>().is_err(), "an id of one kind is none of another");
    }

    #[test]
    fn path_tricks_are_no_ids() {
        for bad in ["", "..", "sb-../../etc", "sb-ABCDEF012345", "sb-0123456789abc", "a/b", "a\0b"]
        {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?} must not be a sandbox id");
        }
    }
}
