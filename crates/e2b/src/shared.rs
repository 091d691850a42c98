//! What all requests share.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_engine::{Caller, Engine};
use forkd_types::{SandboxId, SandboxState};

use crate::aliases::Aliases;
use crate::control::repeat::Repeats;
use crate::domain::Domain;
use crate::envd::place::Homes;
use crate::handed_out::HandedOut;
use crate::listening::{Known, Listening};
use crate::pass_on::PassOn;
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
    pub(crate) templates: Aliases,
    pub(crate) homes: Homes,
    pub(crate) repeats: Repeats<HandedOut>,
    pub(crate) listening: Listening,
    pub(crate) find_caller: FindCaller,
    pub(crate) pass_on: PassOn,
    /// Ports of sandboxes have names below it.
    pub(crate) domain: Domain,
}

impl Shared {
    /// Who comes in with this key.
    pub(crate) fn caller(&self, key: &[u8]) -> Option<Caller> {
        if self.secret.is_api_key(key) {
            return Some(Caller::default());
        }
        (self.find_caller)(key)
    }

    /// How a sandbox stands.
    pub(crate) fn stand(&self, id: &SandboxId) -> Stand {
        self.engine.sandbox(id).map_or(Stand::Gone, |sandbox| stand_of(sandbox.state))
    }

    /// Whether a sandbox answers on its ports.
    pub(crate) fn is_open(&self, id: &SandboxId) -> bool {
        self.stand(id) == Stand::Running
    }

    /// Whether a sandbox has an interpreter of its own on this port, as far as is known; looks
    /// where it is not.
    pub(crate) async fn has_interpreter(
        self: &Arc<Self>,
        id: &SandboxId,
        port: NonZeroU16,
    ) -> bool {
        match self.listening.known(id) {
            Known::Nothing => self.look_for_interpreter(id, port).await,
            Known::Listens => true,
            Known::Silent { look_again } => {
                if look_again {
                    let (shared, id) = (Arc::clone(self), id.clone());
                    tokio::spawn(async move { shared.look_for_interpreter(&id, port).await });
                }
                false
            }
        }
    }

    async fn look_for_interpreter(&self, id: &SandboxId, port: NonZeroU16) -> bool {
        let look = self.listening.look(id);
        let listens = self.engine.dial(id, port.get()).await.is_ok();
        self.listening.saw(id, look, listens);
        listens
    }

    /// Lets a paused sandbox run again if it was made to wake by itself. Tells whether it runs.
    pub(crate) async fn wake(&self, id: &SandboxId) -> bool {
        let wakes_for = self.records.get(id).and_then(|record| record.wakes_for_secs);
        let Some(secs) = wakes_for else { return false };
        let (engine, woken) = (self.engine.clone(), id.clone());
        // To its end, though the client may go away.
        let work = tokio::spawn(async move {
            // Another request may have woken it.
            if engine.resume_sandbox(&woken).await.is_ok() {
                let left = Some(Duration::from_secs(secs));
                if let Err(error) = engine.set_time_left(&woken, left) {
                    tracing::warn!(sandbox = %woken, %error, "a woken sandbox has no end");
                }
            }
        });
        work.await.is_ok() && self.is_open(id)
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
