//! What is known of programs besides what the engine knows: what clients said when they started
//! them. It does not outlive the daemon, as the engine's own list does not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use forkd_engine::guest::ProcessView;
use forkd_types::{ProcessId, SandboxId};
use serde::{Deserialize, Serialize};

/// A program and its surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProcessConfig {
    pub(super) cmd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    #[serde(skip_serializing_if = "HashMap::is_empty")]
    pub(super) envs: HashMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

/// What a client said.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) config: ProcessConfig,
    pub(super) tag: Option<String>,
    /// Has a terminal, and no standard input besides.
    pub(super) on_terminal: bool,
}

/// Which program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Selector {
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}

/// Programs by their sandbox.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<HashMap<SandboxId, HashMap<ProcessId, Said>>>);

impl Processes {
    /// Remembers a program, and forgets those that the engine has forgotten.
    pub(super) fn add(&self, id: &SandboxId, process: ProcessId, said: Said, all: &[ProcessView]) {
        let mut sandboxes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sandboxes.entry(id.clone()).or_default();
        known.retain(|known, _| all.iter().any(|view| view.id == *known));
        known.insert(process, said);
    }

    pub(super) fn get(&self, id: &SandboxId, process: &ProcessId) -> Option<Said> {
        let sandboxes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sandboxes.get(id)?.get(process).cloned()
    }

    /// A sandbox is gone.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Sandboxes that are not among these are gone.
    pub(super) fn keep_only(&self, is_there: impl Fn(&SandboxId) -> bool) {
        let mut sandboxes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sandboxes.retain(|id, _| is_there(id));
    }
}
