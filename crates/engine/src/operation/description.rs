//! What callers get to know of an operation.

use std::time::SystemTime;

use forkd_types::{OperationId, OperationKind, OperationState, Owner, SandboxId, SnapshotTag};

use crate::EngineError;

/// Whether such an operation is cancelled when the daemon ends: it makes a snapshot, or a file that
/// somebody waits for.
pub(super) const fn ends_with_daemon(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::Template
            | OperationKind::Branch
            | OperationKind::Compact
            | OperationKind::Import
            | OperationKind::Export
            | OperationKind::Push
            | OperationKind::Pull
    )
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
    /// To whom it belongs.
    pub owner: Owner,
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
        owner: Owner::default(),
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
