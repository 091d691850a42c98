//! Snapshots in registries, and keys that artifacts are signed with.

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

/// Request body of `POST /v1/snapshots/:tag/push`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSnapshot {
    /// Where to: registry, name and tag.
    #[schema(example = "registry.example/team/warm:v1")]
    pub reference: String,
}

/// What a push has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushedSnapshot {
    /// Where the snapshot is now, with its digest.
    pub reference: String,
    /// Bytes of all its parts.
    pub bytes: u64,
    /// Bytes of those that the registry had not got.
    pub bytes_sent: u64,
}

/// Request body of `POST /v1/pulls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullSnapshot {
    /// Where from: registry, name, and tag or digest.
    #[schema(example = "registry.example/team/warm:v1")]
    pub reference: String,
    /// Tag of the snapshot; the one that it had where it was pushed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Take it whoever has signed it. Its device state is input of a VMM of the host, and could be
    /// made to attack it.
    #[serde(default)]
    pub trust_once: bool,
}
