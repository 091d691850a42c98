//! What a snapshot keeps of its source's network.

use forkd_netd_protocol::Flow;
use forkd_store::SnapshotRow;
use forkd_types::SandboxId;
use forkd_types::network::{HeaderRules, NetworkPolicy};
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// The network of the sandbox that a snapshot was branched from, at the branch point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct InheritedNetwork {
    /// What it could reach; none for a template.
    pub(crate) policy: Option<NetworkPolicy>,
    /// Whose connections these were.
    pub(crate) source: Option<SandboxId>,
    /// The connections that the guest's memory believes in.
    pub(crate) flows: Vec<Flow>,
}

impl InheritedNetwork {
    /// What is written down in `row`.
    pub(crate) fn read(row: &SnapshotRow) -> Result<Self, EngineError> {
        let Some(text) = &row.network else { return Ok(Self::default()) };
        let damaged = |error: serde_json::Error| {
            EngineError::Internal(format!("the network of `{}` cannot be read: {error}", row.tag))
        };
        serde_json::from_str(text).map_err(damaged)
    }

    /// What of the text `written` goes from one daemon to another, or is taken from there: what the
    /// source could reach and its connections. Not its header rules: they name secrets, and those
    /// of the one who imports are others.
    pub(crate) fn carried(written: &str) -> Result<Self, serde_json::Error> {
        let read: Self = serde_json::from_str(written)?;
        let policy =
            read.policy.map(|policy| NetworkPolicy { rules: HeaderRules::default(), ..policy });
        Ok(Self { policy, source: None, ..read })
    }

    /// The text for a row.
    pub(crate) fn text(&self) -> Result<String, EngineError> {
        serde_json::to_string(self).map_err(|error| EngineError::Internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_could_not_reach_is_carried_and_what_names_secrets_is_not() {
        let written = r#"{"policy":{"allow_internet_access":false,
            "rules":{"a.example":[{"transform":{"headers":{"X":"${secrets.KEY}"}}}]}},
            "source":"sb-0123456789ab","flows":[]}"#;
        let read: InheritedNetwork = serde_json::from_str(written).unwrap();
        assert_ne!(read.policy.unwrap().rules, HeaderRules::default(), "there is a rule");
        let carried = InheritedNetwork::carried(written).unwrap();
        let policy = carried.policy.as_ref().unwrap();
        assert_eq!(policy.allow_internet_access, Some(false));
        assert_eq!((&policy.rules, &carried.source), (&HeaderRules::default(), &None));
        let text = carried.text().unwrap();
        assert!(!text.contains("KEY") && !text.contains("sb-"), "{text}");
        assert!(InheritedNetwork::carried("{").is_err());
    }
}
