//! What clients say of programs: which one they mean, and what they said when they started one. The
//! latter goes with the program, into forks too, so it comes back from the guest.

use std::collections::HashMap;

use forkd_engine::guest::ProcessView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A program and its surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(super) struct ProcessConfig {
    /// A name to be looked up, or a path.
    #[serde(default)]
    pub(super) cmd: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    #[serde(default, skip_serializing_if = "HashMap::is_empty")]
    pub(super) envs: HashMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

/// What a client said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    pub(super) config: ProcessConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
    /// Has a terminal, and no standard input besides.
    pub(super) on_terminal: bool,
}

impl Said {
    /// As it goes with the program.
    pub(super) fn note(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }

    /// What was said of a program, unless it was started in another way.
    pub(super) fn of(process: &ProcessView) -> Option<Self> {
        serde_json::from_str(process.note.as_deref()?).ok()
    }
}

/// Which program: one of the two says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = ProcessSelector)]
pub(super) struct Selector {
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}
