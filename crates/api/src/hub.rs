//! What registries have that was pushed from a daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot in a registry. What it consists of is as its signer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HubSnapshot {
    /// Where it is, with its digest.
    #[schema(example = "registry.example/team/warm:v1@sha256:4d1e0f...")]
    pub reference: String,
    /// Bytes of all its parts, as they are in the registry.
    pub bytes: u64,
    /// The tag that it had where it was pushed.
    pub tag: String,
    /// When it was taken, in seconds since 1970.
    pub created_at_unix: u64,
    /// What the snapshots below were called, the nearest first.
    pub ancestors: Vec<String>,
    /// The key that signed it.
    pub key: String,
    /// Whether this daemon trusts that key.
    pub trusted: bool,
    /// What you call the key, if it is trusted and not this daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_as: Option<String>,
    /// The image that it needs, which is not in it.
    pub image: String,
    /// Guest RAM in MiB.
    pub mem_size_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// The version of QEMU.
    pub vmm_version: String,
    /// What guests see as their processor.
    pub cpu_model: String,
    /// How many memory layers it has.
    pub memory_layers: u32,
    /// How many disk overlays it has.
    pub disk_overlays: u32,
    /// Why it does not start on this host; absent if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A tag of a registry that names a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HubEntry {
    /// The tag, in full: what a pull takes.
    #[schema(example = "registry.example/team/warm:v1")]
    pub reference: String,
    /// Digest of what the tag names now.
    pub digest: String,
    /// Bytes of all its parts, as they are in the registry.
    pub bytes: u64,
}

/// Snapshots that were found in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HubListing {
    /// In the order of the registry.
    pub snapshots: Vec<HubEntry>,
    /// Whether these are all. A search looks at 1000 tags, and for a minute at most.
    pub is_complete: bool,
}
