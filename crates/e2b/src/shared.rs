//! What all requests share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_engine::{Caller, Engine};
use forkd_types::{SandboxId, SandboxState, TagName};

use crate::envd::place::Homes;
use crate::envd::table::Processes;
use crate::envd::watchers::Watchers;
use crate::record::Records;
use crate::secret::Secret;

/// The version of E2B's agent that clients are told: they decide by it what they may ask.
pub(crate) const ENVD_VERSION: &str = "0.6.13";

/// Who comes in with a key of the operator's. The daemon's own key is known here.
pub type FindCaller = Arc<dyn Fn(&[u8]) -> Option<Caller> + Send + Sync>;

/// What all requests share.
pub(crate) struct Shared {
    /// As the daemon sees it: who holds a sandbox's token needs no other right.
    pub(crate) engine: Engine,
    pub(crate) secret: Secret,
    pub(crate) records: Records,
    pub(crate) templates: BTreeMap<String, TagName>,
    pub(crate) processes: Processes,
    pub(crate) homes: Homes,
    pub(crate) watchers: Watchers,
    pub(crate) find_caller: FindCaller,
}

impl Shared {
    /// Who comes in with this key.
    pub(crate) fn caller(&self, key: &[u8]) -> Option<Caller> {
        if self.secret.is_api_key(key) {
            return Some(Caller::default());
        }
        (self.find_caller)(key)
    }

    /// Whether a sandbox answers on its ports.
    pub(crate) fn is_open(&self, id: &SandboxId) -> bool {
        self.engine.sandbox(id).is_ok_and(|sandbox| stand_of(sandbox.state) == Stand::Running)
    }
}

/// How a sandbox stands, as far as clients tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    Running,
    Paused,
    /// There is none, for them.
    Gone,
}

/// What a client is told of a state.
pub(crate) const fn stand_of(state: SandboxState) -> Stand {
    match state {
        SandboxState::Running | SandboxState::Branching | SandboxState::RollingBack => {
            Stand::Running
        }
        SandboxState::Paused => Stand::Paused,
        SandboxState::Starting
        | SandboxState::Stopping
        | SandboxState::Dead
        | SandboxState::Gone => Stand::Gone,
    }
}

/// Seconds since 1970.
pub(crate) fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
