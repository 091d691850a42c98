//! What callers get to know of an operation.

use std::fmt;
use std::time::SystemTime;

use forkd_types::{OperationId, SandboxId, SnapshotTag};

use crate::EngineError;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Builds a template.
    Template,
    /// Makes a snapshot of a running sandbox.
    Branch,
    /// Makes a snapshot that depends on no other.
    Compact,
    /// Makes a snapshot durable.
    Publish,
    /// Merges layers or overlays of a running sandbox.
    Flatten,
    /// After a start: makes missing hot copies from durable ones, and checks what is there.
    Restore,
}

impl OperationKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Template, Self::Branch, Self::Compact, Self::Publish, Self::Flatten, Self::Restore];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Branch => "branch",
            Self::Compact => "compact",
            Self::Publish => "publish",
            Self::Flatten => "flatten",
            Self::Restore => "restore",
        }
    }

    /// Whether it makes the snapshot that it is about.
    pub(super) const fn makes_snapshot(self) -> bool {
        matches!(self, Self::Template | Self::Branch | Self::Compact)
    }
}

/// How an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationState {
    /// It waits for its turn or works.
    Running,
    /// It did what it was to do.
    Succeeded,
    /// It did not; the error says why.
    Failed,
    /// It was cancelled, and what it had done is undone.
    Cancelled,
}

impl OperationState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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
