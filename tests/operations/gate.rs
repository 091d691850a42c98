//! A probe that holds one moment of one branch until the test lets it go.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use forkd_engine::{BranchProbe, EngineError, ProbedBranch};
use forkd_types::{BranchPhase, SnapshotTag};

/// A test that forgets to open the gate fails and does not hang.
const HELD_AT_MOST: Duration = Duration::from_secs(60);

/// Where it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Right before this phase.
    Before(BranchPhase),
    /// Right before the snapshot is published.
    Publish,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: Option<(SnapshotTag, Moment)>,
    reached: bool,
}

impl Gate {
    /// Holds the branch `tag` at `moment`.
    pub(crate) fn close(&self, tag: &SnapshotTag, moment: Moment) {
        let closed = Some((tag.clone(), moment));
        *self.state.lock().unwrap() = State { closed, reached: false };
    }

    /// Waits until the branch is held.
    pub(crate) fn wait_reached(&self) {
        let state = self.state.lock().unwrap();
        let wait = self.changed.wait_timeout_while(state, HELD_AT_MOST, |state| !state.reached);
        assert!(!wait.unwrap().1.timed_out(), "the gate is not reached");
    }

    /// Lets it go on.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().closed = None;
        self.changed.notify_all();
    }

    fn pass(&self, tag: &SnapshotTag, moment: Moment) {
        let mut state = self.state.lock().unwrap();
        let here = Some((tag.clone(), moment));
        if state.closed != here {
            return;
        }
        state.reached = true;
        self.changed.notify_all();
        let wait = self.changed.wait_timeout_while(state, HELD_AT_MOST, |s| s.closed == here);
        assert!(!wait.unwrap().1.timed_out(), "the gate was not opened");
    }
}

impl BranchProbe for Gate {
    fn before(&self, phase: BranchPhase, branch: &ProbedBranch<'_>) -> Result<(), EngineError> {
        self.pass(branch.tag, Moment::Before(phase));
        Ok(())
    }

    fn before_publish(&self, tag: &SnapshotTag) -> Result<(), EngineError> {
        self.pass(tag, Moment::Publish);
        Ok(())
    }
}
