//! What is known of programs besides what the engine knows: what clients said when they started
//! them. It does not outlive the daemon, as the engine's own list does not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use forkd_engine::guest::ProcessView;
use forkd_types::{ProcessId, SandboxId};
use serde::{Deserialize, Serialize};

use super::At;
use crate::failure::{Failure, Kind};

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
    pid: Option<u32>,
    tag: Option<String>,
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

impl At {
    /// The program that a client means: of those with one number the one that runs, else the last.
    pub(super) fn process(&self, selector: &Selector) -> Result<ProcessView, Failure> {
        let all = self.shared.engine.processes(&self.id)?;
        let is_meant = |view: &&ProcessView| match selector {
            Selector { pid: Some(pid), .. } => view.pid == *pid,
            Selector { tag: Some(tag), .. } => {
                let said = self.shared.processes.get(&self.id, &view.id);
                said.and_then(|said| said.tag).as_ref() == Some(tag)
            }
            Selector { .. } => false,
        };
        let meant = || all.iter().filter(is_meant);
        let found = meant().rfind(|view| view.end.is_none()).or_else(|| meant().next_back());
        found.cloned().ok_or_else(|| {
            let text = match selector {
                Selector { pid: Some(pid), .. } => format!("process with pid {pid} not found"),
                Selector { tag: Some(_), .. } => "process with this tag not found".to_owned(),
                Selector { .. } => "process: no pid and no tag".to_owned(),
            };
            Failure::new(Kind::NotFound, text)
        })
    }
}
