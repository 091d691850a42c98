//! Life cycles as tables: which state may follow which, and when. The documents show the tables as
//! [`tables`] writes them.

use std::fmt::Write as _;

use crate::Named;
use crate::name::named;

named! {
    /// Where a sandbox stands in its life.
    SandboxState {
        /// Its VM loads, or its guest agent has not yet confirmed the renewal. Never handed out.
        Starting = "starting",
        /// It runs and takes requests.
        Running = "running",
        /// A branch of it is under way, or has failed and its VMM has not yet confirmed that it
        /// runs.
        Branching = "branching",
        /// Its vCPUs stand still because somebody wants it so.
        Paused = "paused",
        /// Its VM is being replaced by a child of a snapshot.
        RollingBack = "rolling_back",
        /// It is being removed.
        Stopping = "stopping",
        /// Its VMM is gone although nobody asked for it.
        Dead = "dead",
        /// It has been removed.
        Gone = "gone",
    }
}

named! {
    /// Whether a snapshot can be used.
    SnapshotStatus {
        /// Being captured.
        Writing = "writing",
        /// Complete and sealed: sandboxes can start from it.
        Ready = "ready",
        /// Not usable; the reason is kept with it.
        Failed = "failed",
    }
}

named! {
    /// How an operation stands.
    OperationState {
        /// It waits for its turn or works.
        Running = "running",
        /// It did what it was to do.
        Succeeded = "succeeded",
        /// It did not; the error says why.
        Failed = "failed",
        /// It was cancelled, and what it had done is undone.
        Cancelled = "cancelled",
    }
}

named! {
    /// How a background process stands.
    ProcessState {
        /// It runs.
        Running = "running",
        /// It has ended, and its exit code is known.
        Exited = "exited",
        /// Its sandbox or the guest agent is gone.
        Lost = "lost",
    }
}

/// A change that may happen to a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop<S: 'static> {
    /// The states that it leads from.
    pub from: &'static [S],
    /// The state that it leads to.
    pub to: S,
    /// What happens, as a clause that follows `when`.
    pub when: &'static str,
}

const fn hop<S>(from: &'static [S], to: S, when: &'static str) -> Hop<S> {
    Hop { from, to, when }
}

/// States that follow each other.
pub trait LifeCycle: Named {
    /// All changes that may happen.
    const HOPS: &'static [Hop<Self>];

    /// Whether one change leads from `self` to `next`.
    fn can_become(self, next: Self) -> bool {
        Self::HOPS.iter().any(|hop| hop.to == next && hop.from.contains(&self))
    }
}

impl LifeCycle for SandboxState {
    const HOPS: &'static [Hop<Self>] = {
        use SandboxState::{
            Branching, Dead, Gone, Paused, RollingBack, Running, Starting, Stopping,
        };
        &[
            hop(&[Starting], Running, "the guest agent confirms the new identity"),
            hop(&[Running], Branching, "a branch begins"),
            hop(&[Branching], Running, "the branch is over and the VMM confirms that it runs"),
            hop(&[Running], Paused, "somebody pauses it"),
            hop(&[Paused], Running, "somebody resumes it"),
            hop(&[Running, Paused], RollingBack, "a rollback begins"),
            hop(
                &[RollingBack],
                Running,
                "the guest agent of the replaced VM confirms its identity",
            ),
            hop(
                &[Starting, Running, Branching, Paused, RollingBack],
                Dead,
                "the VMM ends although nobody asked for it, or the rollback fails",
            ),
            hop(
                &[Starting, Running, Branching, Paused, RollingBack, Dead],
                Stopping,
                "somebody removes it, or its time is over",
            ),
            hop(&[Stopping], Gone, "the VM has ended"),
        ]
    };
}

impl LifeCycle for SnapshotStatus {
    const HOPS: &'static [Hop<Self>] = {
        use SnapshotStatus::{Failed, Ready, Writing};
        &[
            hop(&[Writing], Ready, "all its parts are sealed"),
            hop(&[Writing], Failed, "the request fails or is cancelled, or the daemon ends"),
            hop(&[Ready], Failed, "a part is lost or damaged, and no good copy is left"),
            hop(
                &[Failed],
                Ready,
                "a daemon starts and finds every part of a durable one good again",
            ),
        ]
    };
}

impl LifeCycle for OperationState {
    const HOPS: &'static [Hop<Self>] = {
        use OperationState::{Cancelled, Failed, Running, Succeeded};
        &[
            hop(&[Running], Succeeded, "the work is done"),
            hop(&[Running], Failed, "the work fails"),
            hop(&[Running], Cancelled, "somebody cancels it, and what it did is undone"),
        ]
    };
}

/// The tables of all life cycles for the documents, by the names of the blocks that hold them:
/// between `<!-- generated: NAME -->` and `<!-- end -->` in `docs/operations.md`.
#[must_use]
pub fn tables() -> [(&'static str, String); 3] {
    [
        ("sandbox states", table::<SandboxState>()),
        ("snapshot states", table::<SnapshotStatus>()),
        ("operation states", table::<OperationState>()),
    ]
}

fn table<S: LifeCycle>() -> String {
    let mut text = "| from | to | when |\n|---|---|---|\n".to_owned();
    for Hop { from, to, when } in S::HOPS {
        let from: Vec<String> = from.iter().map(|state| format!("`{}`", state.name())).collect();
        // Writing to a string cannot fail.
        writeln!(text, "| {} | `{}` | {when} |", from.join(", "), to.name()).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All states that may come after `from`.
    fn reachable<S: LifeCycle>(from: S) -> Vec<S> {
        let mut reached = vec![from];
        let mut at = 0;
        while at < reached.len() {
            let here = reached[at];
            let next = S::ALL.iter().filter(|next| here.can_become(**next));
            let fresh: Vec<S> = next.copied().filter(|next| !reached.contains(next)).collect();
            reached.extend(fresh);
            at += 1;
        }
        reached
    }

    fn no_hop_stands_twice_or_leads_nowhere<S: LifeCycle + std::fmt::Debug>() {
        let pairs = || S::HOPS.iter().flat_map(|hop| hop.from.iter().map(|from| (*from, hop.to)));
        for (from, to) in pairs() {
            assert!(from != to, "{from:?} follows itself");
            let same = pairs().filter(|other| *other == (from, to)).count();
            assert_eq!(same, 1, "{from:?} becomes {to:?}");
        }
    }

    #[test]
    fn no_table_says_a_hop_twice() {
        no_hop_stands_twice_or_leads_nowhere::<SandboxState>();
        no_hop_stands_twice_or_leads_nowhere::<SnapshotStatus>();
        no_hop_stands_twice_or_leads_nowhere::<OperationState>();
    }

    #[test]
    fn every_sandbox_can_reach_gone_and_nothing_follows_it() {
        for from in SandboxState::ALL {
            assert!(reachable(from).contains(&SandboxState::Gone), "{from} must be able to end");
            assert!(!from.can_become(SandboxState::Starting), "{from} cannot start again");
        }
        assert_eq!(reachable(SandboxState::Gone), [SandboxState::Gone]);
    }

    #[test]
    fn what_a_branch_or_a_rollback_leaves_is_a_sandbox_that_runs_or_is_dead() {
        use SandboxState::{Branching, Dead, RollingBack, Running, Stopping};
        for state in [Branching, RollingBack] {
            let next: Vec<_> =
                SandboxState::ALL.into_iter().filter(|next| state.can_become(*next)).collect();
            assert_eq!(next, [Running, Stopping, Dead], "{state}");
        }
    }

    #[test]
    fn a_snapshot_that_was_written_is_never_written_again_and_a_failed_one_can_be_good_again() {
        use SnapshotStatus::{Failed, Ready, Writing};
        for status in SnapshotStatus::ALL {
            assert!(!status.can_become(Writing));
        }
        assert!(Failed.can_become(Ready) && Ready.can_become(Failed));
    }

    #[test]
    fn the_documents_show_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let page = std::fs::read_to_string(path).unwrap();
        for (name, table) in tables() {
            let block = format!("<!-- generated: {name} -->\n{table}<!-- end -->\n");
            assert!(page.contains(&block), "docs/operations.md must have this block:\n{block}");
        }
    }

    #[test]
    fn an_operation_that_has_ended_stays_as_it_is() {
        use OperationState::{Cancelled, Failed, Running, Succeeded};
        for ended in [Succeeded, Failed, Cancelled] {
            assert!(Running.can_become(ended));
            assert_eq!(reachable(ended), [ended]);
        }
    }
}
