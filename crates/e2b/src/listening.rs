//! Whether something in a sandbox listens on the interpreter's port, as it was seen last. To look
//! is a round through the guest, which every request for the interpreter would otherwise wait for.
//!
//! ```text
//! nothing is known, or a client has started or killed a program  look first
//! nothing listened ............................................. answer in its place
//!     and that was seen a while ago ............................ look meanwhile, for the next one
//! something listened ........................................... pass on
//!     and it does not any more ................................. look first the next time
//! ```
//!
//! Guarantees: a server that listens is found, but by the first request that comes a second after
//! the last look. If a client's program has started since that look, the first finds it too. One
//! that a client has killed is asked no more.
//!
//! Does not do: look.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_types::SandboxId;

/// Sandboxes that are remembered.
const SANDBOXES_MAX: usize = 4096;
/// What was seen so long ago is looked at again, while requests go on with it.
const FRESH: Duration = Duration::from_secs(1);

/// What is known of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It must be looked at first.
    Nothing,
    /// Nothing listened; whether it should be looked at again.
    Silent { look_again: bool },
    /// Something listened.
    Listens,
}

#[derive(Debug, Default, Clone, Copy)]
struct Sandbox {
    /// Counts what makes older looks worthless.
    turn: u64,
    seen: Option<(bool, Instant)>,
}

/// A look that was begun, and at what.
#[derive(Debug)]
pub(crate) struct Look(u64);

/// What was seen of each sandbox.
#[derive(Debug, Default)]
pub(crate) struct Listening(Mutex<HashMap<SandboxId, Sandbox>>);

impl Listening {
    fn change<T>(&self, id: &SandboxId, change: impl FnOnce(&mut Sandbox) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SANDBOXES_MAX && !all.contains_key(id) {
            all.clear();
        }
        change(all.entry(id.clone()).or_default())
    }

    /// What is known of a sandbox. Tells one at a time to look again.
    pub(crate) fn known(&self, id: &SandboxId) -> Known {
        self.change(id, |sandbox| match &mut sandbox.seen {
            None => Known::Nothing,
            Some((true, _)) => Known::Listens,
            Some((false, at)) => {
                let look_again = at.elapsed() >= FRESH;
                if look_again {
                    *at = Instant::now();
                }
                Known::Silent { look_again }
            }
        })
    }

    /// Somebody looks from now on.
    pub(crate) fn look(&self, id: &SandboxId) -> Look {
        self.change(id, |sandbox| Look(sandbox.turn))
    }

    /// What a look has seen; it is nothing if something has changed since it began.
    pub(crate) fn saw(&self, id: &SandboxId, look: Look, listens: bool) {
        self.change(id, |sandbox| {
            if sandbox.turn == look.0 {
                sandbox.seen = Some((listens, Instant::now()));
            }
        });
    }

    /// What was seen may be so no longer.
    pub(crate) fn changed(&self, id: &SandboxId) {
        self.change(id, |sandbox| {
            sandbox.turn += 1;
            sandbox.seen = None;
        });
    }

    /// A fork is as its source was.
    pub(crate) fn forked(&self, source: &SandboxId, fork: &SandboxId) {
        let seen = self.change(source, |sandbox| sandbox.seen);
        self.change(fork, |sandbox| sandbox.seen = seen);
    }

    /// A sandbox is gone.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> [SandboxId; 2] {
        ["sb-000000000001", "sb-000000000002"].map(|id| id.parse().unwrap())
    }

    #[test]
    fn what_was_seen_counts_until_something_is_started_and_a_fork_has_it() {
        let (listening, [id, fork]) = (Listening::default(), ids());
        assert_eq!(listening.known(&id), Known::Nothing);
        listening.saw(&id, listening.look(&id), false);
        assert_eq!(listening.known(&id), Known::Silent { look_again: false });
        listening.forked(&id, &fork);
        assert_eq!(listening.known(&fork), Known::Silent { look_again: false });
        let begun_before = listening.look(&id);
        listening.changed(&id);
        listening.saw(&id, begun_before, false);
        assert_eq!(listening.known(&id), Known::Nothing, "it may have come too late");
        listening.saw(&id, listening.look(&id), true);
        assert_eq!(listening.known(&id), Known::Listens);
        assert_eq!(listening.known(&fork), Known::Silent { look_again: false });
        listening.forget(&fork);
        assert_eq!(listening.known(&fork), Known::Nothing);
    }

    #[test]
    fn what_was_seen_a_while_ago_is_looked_at_again_by_one_request() {
        let (listening, [id, _]) = (Listening::default(), ids());
        listening.saw(&id, listening.look(&id), false);
        listening.change(&id, |sandbox| {
            sandbox.seen = Instant::now().checked_sub(FRESH).map(|at| (false, at));
        });
        assert_eq!(listening.known(&id), Known::Silent { look_again: true });
        assert_eq!(listening.known(&id), Known::Silent { look_again: false });
    }
}
