//! Sandboxes: what they look like, and starting them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forkd_types::network::{self, NetworkName};
use forkd_types::{ByteCount, Isolation, SandboxState, TagName, limit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{FieldError, within};
use crate::options::{check_lifetime, check_metadata};
use crate::{Membership, NetworkPolicy, Word};

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its name, `sb-` and twelve hexadecimal digits.
    pub id: String,
    /// To whom it belongs.
    #[serde(default)]
    pub owner: String,
    /// The snapshot that it was started from; `OWNER/TAG` for another owner's.
    pub snapshot_tag: String,
    /// When it was requested, in seconds since 1970.
    pub created_at_unix: u64,
    /// Process id of its VMM.
    pub pid: Option<u32>,
    /// The most memory that its VMM may have on the host; null when it is not limited.
    pub memory_limit_mib: Option<u64>,
    /// How many processors' time its VMM may use; null when it is not limited.
    pub cpu_limit: Option<f64>,
    /// The network namespace that its VMM has for itself, such as `/proc/4711/ns/net`; null when
    /// it was not asked for, or is gone with the VMM.
    pub netns: Option<String>,
    /// How far its VMM is kept from the host.
    #[serde(default)]
    #[schema(value_type = Isolation)]
    pub isolation: Word<Isolation>,
    /// The address of its network device, the same in every sandbox; null without a device, which
    /// sandboxes of snapshots made by an earlier forkd do not have.
    pub guest_addr: Option<String>,
    /// What it may reach.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// The private networks that it is a member of, and how other members reach it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Membership>,
    /// The address of a preview of it, with `{port}` in place of the port; null when the daemon
    /// was started without previews.
    #[serde(default)]
    #[schema(example = "http://{port}-sb-0123456789ab.localhost:8890")]
    pub preview_url: Option<String>,
    /// Where it stands in its life.
    #[schema(value_type = SandboxState)]
    pub state: Word<SandboxState>,
    /// Branches taken from it.
    pub branch_count: u64,
    /// How often the network gateway has refused what it wanted to reach, since the daemon was
    /// started.
    #[serde(default)]
    pub network_refusals: u64,
    /// Its host name.
    pub hostname: String,
    /// From the request until it was ready for use, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<f64>,
    /// Milliseconds by phase of the start; together they are `start_ms`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub start_phases_ms: BTreeMap<String, f64>,
    /// Why it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its creator's words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Seconds from its creation to its removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_secs: Option<u64>,
    /// Seconds from its last use to its removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    /// When it will be removed unless it is used before, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
}

/// Starts sandboxes from a snapshot: all or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandboxes {
    /// The snapshot; `OWNER/TAG` for one that another owner shares.
    pub snapshot_tag: String,
    /// How many, 1 to 1000.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub n: u32,
    /// Gives each VMM a network namespace of its own, so that it is cut off from the host's
    /// network. What the guest may reach is said by `network`.
    #[serde(default)]
    pub per_child_netns: bool,
    /// The most memory that each VMM may have on the host, guest and VMM together. The kernel ends
    /// one that wants more; its sandbox is `dead` then. By default guest RAM is the only bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 64, maximum = 4_194_304)]
    pub memory_limit_mib: Option<u64>,
    /// What it may reach. By default what the sandbox could that the snapshot was branched from;
    /// for a template, public addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Accepted, without effect: a sandbox's first branch is as fast as the others.
    #[serde(default)]
    pub prewarm: bool,
    /// Accepted, without effect: every sandbox can be branched live.
    #[serde(default)]
    pub live_fork: bool,
    /// Accepted, without effect: guest RAM is shared in pages of 4 KiB.
    #[serde(default)]
    pub hugepages: bool,
    /// Words for the creator's own use: at most 32 entries of at most 1024 bytes each, key and
    /// value together. Lists of sandboxes can be filtered by them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Removes the sandbox so many seconds after this request, whoever uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub ttl_secs: Option<u64>,
    /// Removes the sandbox when it was not used for so many seconds. Used is it by requests to its
    /// guest, by programs that such a request runs, and by branches; not by looking at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_622_400)]
    pub idle_timeout_secs: Option<u64>,
}

/// A request to start sandboxes whose fields are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCreateSandboxes {
    /// The snapshot.
    pub tag: TagName,
    /// Time to live.
    pub ttl: Option<Duration>,
    /// Time without use.
    pub idle_timeout: Option<Duration>,
    /// Memory limit.
    pub memory_limit: Option<ByteCount>,
    /// What it may reach, if not what is inherited.
    pub network: Option<network::NetworkPolicy>,
    /// The private networks to join.
    pub join: BTreeSet<NetworkName>,
}

const fn one() -> u32 {
    1
}

/// Request body of `POST /v1/sandboxes/:id/rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackSandbox {
    /// The snapshot to go back to.
    pub snapshot_tag: String,
}

impl RollbackSandbox {
    /// The tag, when it is one.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<TagName, FieldError> {
        self.snapshot_tag.parse().map_err(|error| FieldError::new("snapshot_tag", error))
    }
}

impl CreateSandboxes {
    /// `count` sandboxes from `tag`.
    #[must_use]
    pub fn new(tag: impl Into<String>, count: u32) -> Self {
        Self {
            snapshot_tag: tag.into(),
            n: count,
            per_child_netns: false,
            memory_limit_mib: None,
            network: None,
            prewarm: false,
            live_fork: false,
            hugepages: false,
            metadata: BTreeMap::new(),
            ttl_secs: None,
            idle_timeout_secs: None,
        }
    }

    /// The parsed fields, when all are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<CheckedCreateSandboxes, FieldError> {
        within("n", self.n, 1, limit::CHILDREN_PER_REQUEST_MAX)?;
        let bounded = |mib| {
            let (min, max) = (limit::MEMORY_LIMIT_MIB_MIN, limit::MEMORY_LIMIT_MIB_MAX);
            within("memory_limit_mib", mib, min, max).map(ByteCount::from_mib)
        };
        let memory_limit = self.memory_limit_mib.map(bounded).transpose()?;
        check_metadata(&self.metadata)?;
        let tag = self.snapshot_tag.parse();
        let join = self.network.as_ref().map(NetworkPolicy::joined).transpose()?;
        Ok(CheckedCreateSandboxes {
            tag: tag.map_err(|error| FieldError::new("snapshot_tag", error))?,
            ttl: check_lifetime("ttl_secs", self.ttl_secs)?,
            idle_timeout: check_lifetime("idle_timeout_secs", self.idle_timeout_secs)?,
            memory_limit,
            network: NetworkPolicy::check_if_said(self.network.as_ref())?,
            join: join.flatten().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> CreateSandboxes {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_the_published_client_sends_is_accepted() {
        let request = parse(
            r#"{"snapshot_tag":"py","n":2,"per_child_netns":true,"prewarm":true,
                "live_fork":true,"hugepages":true}"#,
        );
        assert_eq!(request.check().unwrap().tag.plain(), Some("py"));
        assert_eq!(parse(r#"{"snapshot_tag":"py"}"#).n, 1);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |json: &str| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"snapshot_tag":"py","n":0}"#), "n");
        assert_eq!(field(r#"{"snapshot_tag":"py","n":1001}"#), "n");
        assert_eq!(field(r#"{"snapshot_tag":"../x"}"#), "snapshot_tag");
        for mib in [0, 63, 4_194_305] {
            let json = format!(r#"{{"snapshot_tag":"py","memory_limit_mib":{mib}}}"#);
            assert_eq!(field(&json), "memory_limit_mib");
        }
        let least = parse(r#"{"snapshot_tag":"py","memory_limit_mib":64}"#).check().unwrap();
        assert_eq!(least.memory_limit, Some(ByteCount::from_mib(64)));
        assert_eq!(field(r#"{"snapshot_tag":"py","ttl_secs":0}"#), "ttl_secs");
        assert_eq!(field(r#"{"snapshot_tag":"py","ttl_secs":31622401}"#), "ttl_secs");
        let idle = r#"{"snapshot_tag":"py","idle_timeout_secs":0}"#;
        assert_eq!(field(idle), "idle_timeout_secs");
    }

    #[test]
    fn metadata_is_bounded_in_entries_and_bytes() {
        let with = |metadata: Vec<(String, String)>| {
            let metadata = metadata.into_iter().collect();
            CreateSandboxes { metadata, ..CreateSandboxes::new("py", 1) }.check()
        };
        let entries = |count: usize| (0..count).map(|n| (n.to_string(), "v".into())).collect();
        assert!(with(entries(32)).is_ok());
        assert_eq!(with(entries(33)).unwrap_err().field, "metadata");
        assert!(with(vec![("k".repeat(24), "v".repeat(1000))]).is_ok());
        for (key, value) in [
            ("k".repeat(25), "v".repeat(1000)),
            (String::new(), "v".into()),
            ("a\nb".into(), "v".into()),
        ] {
            assert_eq!(with(vec![(key, value)]).unwrap_err().field, "metadata");
        }
    }
}
