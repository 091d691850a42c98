//! Life cycles as tables: which state may follow which.
//!
//! ```text
//! sandbox:   starting -> running <-> branching -> stopping -> gone
//!                \__________\____________\______-> dead ----^
//!            running <-> paused; running, paused -> rolling_back -> running; both may stop or die
//! snapshot:  writing -> ready        (durable is a field of its own)
//!                \______-> failed
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a sandbox stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Its VM loads, or its guest agent has not yet confirmed the renewal. Never handed out.
    Starting,
    /// It runs and takes requests.
    Running,
    /// A branch of it is under way, or has failed and its VMM has not yet confirmed that it runs.
    Branching,
    /// Its vCPUs stand still because somebody wants it so.
    Paused,
    /// Its VM is being replaced by a child of a snapshot.
    RollingBack,
    /// It is being removed.
    Stopping,
    /// Its VMM is gone although nobody asked for it.
    Dead,
    /// It has been removed.
    Gone,
}

impl SandboxState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Starting,
        Self::Running,
        Self::Branching,
        Self::Paused,
        Self::RollingBack,
        Self::Stopping,
        Self::Dead,
        Self::Gone,
    ];

    /// Whether one hop leads from `self` to `next`.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use SandboxState::{
            Branching, Dead, Gone, Paused, RollingBack, Running, Starting, Stopping,
        };
        matches!(
            (self, next),
            (Starting, Running | Stopping | Dead)
                | (Running, Branching | Paused | RollingBack | Stopping | Dead)
                | (Branching | RollingBack, Running | Stopping | Dead)
                | (Paused, Running | RollingBack | Stopping | Dead)
                | (Dead, Stopping)
                | (Stopping, Gone)
        )
    }

    /// The state's name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Branching => "branching",
            Self::Paused => "paused",
            Self::RollingBack => "rolling_back",
            Self::Stopping => "stopping",
            Self::Dead => "dead",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a snapshot can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotStatus {
    /// Being captured.
    Writing,
    /// Complete and sealed: sandboxes can start from it.
    Ready,
    /// Not usable; the reason is kept with it.
    Failed,
}

impl SnapshotStatus {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Writing, Self::Ready, Self::Failed];

    /// Whether one hop leads from `self` to `next`. A ready snapshot may turn out to be damaged.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use SnapshotStatus::{Failed, Ready, Writing};
        matches!((self, next), (Writing, Ready | Failed) | (Ready, Failed))
    }

    /// The status's name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Writing => "writing",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for SnapshotStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_state_follows_itself_and_nothing_follows_the_last() {
        for state in SandboxState::ALL {
            assert!(!state.can_become(state));
            assert!(!SandboxState::Gone.can_become(state));
            assert!(!state.can_become(SandboxState::Starting), "{state} cannot start again");
        }
        for status in SnapshotStatus::ALL {
            assert!(!status.can_become(status));
            assert!(!SnapshotStatus::Failed.can_become(status));
        }
    }

    #[test]
    fn every_sandbox_can_reach_gone() {
        for from in SandboxState::ALL {
            let mut reached = vec![from];
            let mut at = 0;
            while at < reached.len() {
                let here = reached[at];
                for next in SandboxState::ALL {
                    if here.can_become(next) && !reached.contains(&next) {
                        reached.push(next);
                    }
                }
                at += 1;
            }
            assert!(reached.contains(&SandboxState::Gone), "{from} must be able to end");
        }
    }

    #[test]
    fn state_names_are_their_serde_names() {
        for state in SandboxState::ALL {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        }
    }
}
