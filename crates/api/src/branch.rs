//! Branching a sandbox while it runs.

use std::collections::BTreeSet;

use forkd_types::{BranchMode, TagName, limit, network};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{FieldError, within};
use crate::{ErrorBody, NetworkPolicy, Sandbox, Snapshot, Word};

/// Takes a snapshot of a running sandbox with minimal pause and starts `n` children from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BranchRequest {
    /// Tag of the new snapshot; by default `branch-<sandbox>-<time>-<random>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Which pages are captured, and when; by default `live`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BranchMode>)]
    pub mode: Option<Word<BranchMode>>,
    /// The same as mode `diff`; excludes `mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<bool>,
    /// Report what a diff would have cost, whatever the mode: `diff_ms`, `diff_physical_bytes`,
    /// `diff_logical_bytes`. The snapshot is the same. Excludes `diff`; without `mode`, the mode is
    /// `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure_diff: Option<bool>,
    /// Answer when the snapshot is ready; else, with 202, as soon as the source runs again.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Children to start at once, 0 to 1000.
    #[serde(default)]
    #[schema(maximum = 1000)]
    pub n: u32,
    /// What the children may reach; by default what the source may. What is started from the
    /// snapshot later is not concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Neither push nor export the snapshot, nor what is branched from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

const fn yes() -> bool {
    true
}

impl Default for BranchRequest {
    fn default() -> Self {
        Self {
            tag: None,
            mode: None,
            diff: None,
            measure_diff: None,
            wait: yes(),
            n: 0,
            network: None,
            private: false,
        }
    }
}

/// A branch request whose fields are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedBranch {
    /// The tag, if the client chose one.
    pub tag: Option<TagName>,
    /// The mode.
    pub mode: BranchMode,
    /// What the children may reach, if that is said.
    pub network: Option<network::NetworkPolicy>,
    /// The private networks that the children join, if that is said.
    pub join: Option<BTreeSet<network::NetworkName>>,
}

impl BranchRequest {
    /// The parsed fields, when all are in order and none contradicts another.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<CheckedBranch, FieldError> {
        let tag = self.tag.as_deref().map(str::parse::<TagName>).transpose();
        let tag = tag.map_err(|error| FieldError::new("tag", error))?;
        let legacy_diff = self.diff == Some(true);
        if self.mode.is_some() && legacy_diff {
            return Err(FieldError::new("diff", "excludes `mode`: give `mode` alone"));
        }
        if legacy_diff && self.measure_diff == Some(true) {
            let problem = "excludes `diff`: a diff reports its figures anyway";
            return Err(FieldError::new("measure_diff", problem));
        }
        within("n", self.n, 0, limit::CHILDREN_PER_REQUEST_MAX)?;
        if self.n > 0 && !self.wait {
            let problem = "children can start only from a ready snapshot: leave `wait` true";
            return Err(FieldError::new("n", problem));
        }
        let mode = match &self.mode {
            Some(word) => word.as_str().parse().map_err(|error| FieldError::new("mode", error))?,
            None if legacy_diff => BranchMode::Diff,
            // Only there is something to be measured beside what is done anyway.
            None if self.measure_diff == Some(true) => BranchMode::Full,
            None => BranchMode::default(),
        };
        let network = NetworkPolicy::check_if_said(self.network.as_ref())?;
        let join = self.network.as_ref().map(NetworkPolicy::joined).transpose()?.flatten();
        if self.network.is_some() && self.n == 0 {
            return Err(FieldError::new("network", "is for children: ask for some with `n`"));
        }
        Ok(CheckedBranch { tag, mode, network, join })
    }
}

/// What a branch gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BranchAnswer {
    /// The new snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// One entry for each child asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Child>,
}

/// One child of a branch: exactly one of `sandbox` and `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Child {
    /// It runs.
    Sandbox(Box<Sandbox>),
    /// It could not be started.
    Error(ErrorBody),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> BranchRequest {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_empty_request_is_a_live_branch_that_waits() {
        let request = parse("{}");
        assert_eq!(request, BranchRequest::default());
        let field = |json| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"network":{}}"#), "network", "there is nobody whom it is for");
        assert_eq!(field(r#"{"n":1,"network":{"allow_out":["not a name"]}}"#), "network.allow_out");
        assert!(parse(r#"{"n":1,"network":{}}"#).check().unwrap().network.is_some());
        let checked =
            CheckedBranch { tag: None, mode: BranchMode::Live, network: None, join: None };
        assert_eq!(request.check().unwrap(), checked);
    }

    #[test]
    fn the_legacy_flag_means_mode_diff_and_excludes_the_newer_word() {
        assert_eq!(parse(r#"{"diff":true}"#).check().unwrap().mode, BranchMode::Diff);
        assert_eq!(parse(r#"{"diff":false}"#).check().unwrap().mode, BranchMode::Live);
        let both = parse(r#"{"diff":false,"mode":"full"}"#).check().unwrap();
        assert_eq!(both.mode, BranchMode::Full, "a flag that is off contradicts nothing");
        let field = |json: &str| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"diff":true,"mode":"live"}"#), "diff");
        assert_eq!(field(r#"{"diff":true,"measure_diff":true}"#), "measure_diff");
        assert!(parse(r#"{"mode":"full","measure_diff":true}"#).check().is_ok());
        let measured = parse(r#"{"measure_diff":true}"#).check().unwrap();
        assert_eq!(measured.mode, BranchMode::Full);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |json: &str| parse(json).check().unwrap_err().field;
        assert_eq!(field(r#"{"mode":"fast"}"#), "mode");
        assert_eq!(field(r#"{"tag":"a b"}"#), "tag");
        assert_eq!(field(r#"{"n":1001}"#), "n");
        assert_eq!(field(r#"{"n":1,"wait":false}"#), "n");
    }

    #[test]
    fn the_answer_is_a_snapshot_with_children_beside_its_own_fields() {
        let answer = BranchAnswer {
            snapshot: Snapshot { tag: "b".into(), ..Snapshot::default() },
            children: vec![Child::Error(ErrorBody::new(crate::ErrorCode::NoSpace, "full"))],
        };
        let json = serde_json::to_value(&answer).unwrap();
        assert_eq!(json["tag"], "b");
        assert_eq!(json["children"][0]["error"]["code"], "no_space");
        assert_eq!(json["children"][0].as_object().unwrap().len(), 1);
        assert_eq!(serde_json::from_value::<BranchAnswer>(json).unwrap(), answer);
    }
}
