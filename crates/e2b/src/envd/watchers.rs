//! What watchers have seen and nobody has asked for yet.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use forkd_types::SandboxId;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::failure::{Failure, Kind};

/// Changes that are kept for one that nobody asks.
const EVENTS_KEPT: usize = 10_000;

/// What a watcher has seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) events: VecDeque<Value>,
    /// Why there will be no more.
    pub(super) over: Option<Failure>,
}

/// One of them.
pub(super) struct Watcher {
    pub(super) seen: Mutex<Seen>,
    pub(super) changed: Notify,
}

/// The watchers that are asked for what they saw. They end with their sandbox.
#[derive(Default)]
pub(crate) struct Watchers(pub(super) Mutex<HashMap<(SandboxId, String), Kept>>);

/// A watcher, and the task that fills it.
pub(super) type Kept = (Arc<Watcher>, AbortHandle);

impl Watchers {
    /// A sandbox is gone.
    pub(crate) fn forget(&self, id: &SandboxId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(of, _), (_, task)| {
            if of == id {
                task.abort();
            }
            of != id
        });
    }

    pub(super) fn get(&self, id: &SandboxId, name: &str) -> Result<Arc<Watcher>, Failure> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&(id.clone(), name.to_owned()));
        let unknown = || Failure::new(Kind::NotFound, "there is no such watcher");
        found.map(|(watcher, _)| Arc::clone(watcher)).ok_or_else(unknown)
    }
}

impl Watcher {
    pub(super) fn see(&self, result: Result<Vec<Value>, Failure>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(events) if seen.events.len() < EVENTS_KEPT => seen.events.extend(events),
            Ok(_) => {
                let text = "changes were missed: nobody asked for them";
                seen.over.get_or_insert(Failure::new(Kind::Internal, text));
            }
            Err(failure) => {
                seen.over.get_or_insert(failure);
            }
        }
        drop(seen);
        self.changed.notify_one();
    }
}
