//! Sandboxes: what they look like, and starting them.

use forkd_types::{SnapshotTag, limit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{FieldError, within};

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its name, `sb-` and twelve hexadecimal digits.
    pub id: String,
    /// The snapshot that it was started from.
    pub snapshot_tag: String,
    /// When it was requested, in seconds since 1970.
    pub created_at_unix: u64,
    /// Process id of its VMM.
    pub pid: Option<u32>,
    /// Always null: a sandbox cannot use more memory than its guest RAM.
    pub memory_limit_mib: Option<u64>,
    /// Its network namespace on the host; null when it has no network.
    pub netns: Option<String>,
    /// Its address; null when it has no network.
    pub guest_addr: Option<String>,
    /// `starting`, `running`, `branching`, `stopping` or `dead`.
    pub state: String,
    /// Branches taken from it.
    pub branch_count: u64,
    /// Its host name.
    pub hostname: String,
    /// From the request until its guest agent had confirmed the renewal, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<f64>,
    /// Why it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Starts sandboxes from a snapshot: all or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandboxes {
    /// The snapshot.
    pub snapshot_tag: String,
    /// How many, 1 to 1000.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub n: u32,
    /// Accepted; sandboxes never share a network with each other.
    #[serde(default)]
    pub per_child_netns: bool,
    /// Must be absent: a sandbox's memory is bounded by the guest RAM of its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// Accepted, without effect: a sandbox's first branch is as fast as the others.
    #[serde(default)]
    pub prewarm: bool,
    /// Accepted, without effect: every sandbox can be branched live.
    #[serde(default)]
    pub live_fork: bool,
    /// Accepted, without effect: guest RAM is shared in pages of 4 KiB.
    #[serde(default)]
    pub hugepages: bool,
}

const fn one() -> u32 {
    1
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
            prewarm: false,
            live_fork: false,
            hugepages: false,
        }
    }

    /// The snapshot's tag, when all fields are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<SnapshotTag, FieldError> {
        within("n", self.n, 1, limit::CHILDREN_PER_REQUEST_MAX)?;
        if self.memory_limit_mib.is_some() {
            let problem = "is not enforced apart from guest RAM: leave it out, and set \
                           `mem_size_mib` when building the template";
            return Err(FieldError::new("memory_limit_mib", problem));
        }
        self.snapshot_tag.parse().map_err(|error| FieldError::new("snapshot_tag", error))
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
        assert_eq!(request.check().unwrap().as_str(), "py");
        assert_eq!(parse(r#"{"snapshot_tag":"py"}"#).n, 1);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |json: &str| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"snapshot_tag":"py","n":0}"#), "n");
        assert_eq!(field(r#"{"snapshot_tag":"py","n":1001}"#), "n");
        assert_eq!(field(r#"{"snapshot_tag":"../x"}"#), "snapshot_tag");
        assert_eq!(field(r#"{"snapshot_tag":"py","memory_limit_mib":1}"#), "memory_limit_mib");
    }
}
