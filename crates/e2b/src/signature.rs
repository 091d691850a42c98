//! Signatures of file addresses, which let whoever has the address read or write one file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What an address permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

/// What is signed, as it stands in the query.
#[derive(Debug, Clone)]
pub(crate) struct Signed<'a> {
    /// The path.
    pub(crate) path: &'a str,
    /// The user; empty when absent.
    pub(crate) user: &'a str,
    /// What it permits.
    pub(crate) right: Right,
    /// Until when, in seconds since 1970.
    pub(crate) expiration: Option<i64>,
}

impl Signed<'_> {
    /// Its signature under a sandbox's token.
    pub(crate) fn signature(&self, token: &str) -> String {
        let right = match self.right {
            Right::Read => "read",
            Right::Write => "write",
        };
        let mut text = format!("{}:{right}:{}:{token}", self.path, self.user);
        if let Some(expiration) = self.expiration {
            text = format!("{text}:{expiration}");
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }

    /// Whether `given` is that. Takes the same time whatever it is.
    pub(crate) fn is_signed(&self, token: &str, given: &str) -> bool {
        self.signature(token).as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// Whether its time is over.
    pub(crate) fn has_expired(&self, now_unix: i64) -> bool {
        self.expiration.is_some_and(|until| until < now_unix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_it_is_signed() {
        let signed = Signed { path: "a.txt", user: "", right: Right::Read, expiration: None };
        let signature = signed.signature("token");
        assert!(signed.is_signed("token", &signature));
        assert!(!signature.contains('='), "{signature}");
        let others = [
            Signed { path: "b.txt", ..signed.clone() },
            Signed { user: "root", ..signed.clone() },
            Signed { right: Right::Write, ..signed.clone() },
            Signed { expiration: Some(1), ..signed.clone() },
        ];
        for other in others {
            assert!(!other.is_signed("token", &signature), "{other:?}");
        }
        assert!(!signed.is_signed("another", &signature));
        assert!(!signed.is_signed("token", ""));
    }

    #[test]
    fn it_is_what_the_published_client_computes() {
        // sha256("/x:read:root:t:5"), from the client's own function.
        let signed = Signed { path: "/x", user: "root", right: Right::Read, expiration: Some(5) };
        assert_eq!(signed.signature("t"), "v1_9HPwtcdQoJBdaIuP1fhvT9l8k5k4SXlS2bxyF/KI/3w");
    }

    #[test]
    fn an_address_without_an_end_never_expires() {
        let signed = |expiration| Signed { path: "", user: "", right: Right::Read, expiration };
        assert!(!signed(None).has_expired(i64::MAX));
        assert!(!signed(Some(10)).has_expired(10));
        assert!(signed(Some(10)).has_expired(11));
    }
}
