//! Keys that artifacts are signed with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The key that this daemon signs artifacts with, and those whose artifacts it imports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Keys {
    /// This daemon's key. Others trust it to import what it exports.
    #[schema(example = "ed25519:4d1e0f...")]
    pub key: String,
    /// Keys that this daemon trusts, by name.
    pub trusted: Vec<TrustedKey>,
}

/// A key of another daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrustedKey {
    /// What you call it.
    pub name: String,
    /// The key.
    pub key: String,
    /// When it was trusted, in seconds since 1970.
    pub trusted_at_unix: u64,
}

/// Request body of `PUT /v1/keys/:name`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrustKey {
    /// The key, as `forkd key` shows it there.
    pub key: String,
}
