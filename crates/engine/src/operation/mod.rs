//! Operations: long requests with a name, a state and a step, that can be waited for and cancelled.
//!
//! `table` knows all of them, `running` is what the work itself holds, `requests` what can be asked
//! from outside.
//!
//! Guarantees: an operation that has begun ends, also when its work dies; one that was cancelled
//! has left nothing behind when it says so; the number of ended ones that are kept is bounded.
//!
//! Does not do: the work.

mod requests;
mod running;
mod table;

use std::time::SystemTime;

use forkd_types::{OperationId, SandboxId, SnapshotTag};

use crate::EngineError;

pub use forkd_types::{OperationKind, OperationState};
pub use requests::Begun;
pub(crate) use running::Running;
pub(crate) use table::{Operations, Subject};

/// Whether such an operation makes the snapshot that it is about.
const fn makes_snapshot(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Template | OperationKind::Branch | OperationKind::Compact)
}

/// How far an operation has come, in parts that take about as long as each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Parts that are done.
    pub done: u64,
    /// All parts.
    pub total: u64,
}

/// An operation, as far as callers care.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its name.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// How it stands.
    pub state: OperationState,
    /// What it is at, in words.
    pub step: &'static str,
    /// How far it is, where that is known.
    pub progress: Option<Progress>,
    /// The snapshot that it makes, or makes durable.
    pub snapshot_tag: Option<SnapshotTag>,
    /// The sandbox that it works on.
    pub sandbox_id: Option<SandboxId>,
    /// When it began.
    pub created_at: SystemTime,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
    /// Why it failed.
    pub error: Option<EngineError>,
}

#[cfg(test)]
pub(crate) fn example() -> Operation {
    Operation {
        id: OperationId::random(),
        kind: OperationKind::Branch,
        state: OperationState::Running,
        step: "prepare",
        progress: None,
        snapshot_tag: None,
        sandbox_id: None,
        created_at: SystemTime::now(),
        ended_at: None,
        error: None,
    }
}
