//! Everything that a request to the engine can end with. The API maps each variant to a stable
//! code.

use std::path::PathBuf;
use std::sync::Arc;

use forkd_capture::CaptureError;
use forkd_store::StoreError;
use forkd_types::{ByteCount, OperationId, SandboxId, SandboxState, SnapshotStatus, SnapshotTag};
use forkd_vmm::VmmError;

use crate::guest::{GuestError, ProcessError};

/// Why a request was not done. Whoever asked gets it, and the operation keeps a copy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// No snapshot has this tag.
    #[error("no snapshot is tagged `{tag}`")]
    UnknownSnapshot {
        /// The tag.
        tag: SnapshotTag,
    },
    /// No sandbox has this id.
    #[error("there is no sandbox `{id}`")]
    UnknownSandbox {
        /// The id.
        id: SandboxId,
    },
    /// No image has this name.
    #[error("there is no image `{name}` in `{}`; there are: {known}", directory.display())]
    UnknownImage {
        /// The name.
        name: String,
        /// Where images were looked for.
        directory: PathBuf,
        /// Those that exist, comma-separated.
        known: String,
    },
    /// The tag is taken, or being written.
    #[error("the tag `{tag}` is taken by a snapshot that is {status}")]
    TagTaken {
        /// The tag.
        tag: SnapshotTag,
        /// State of the snapshot that has it.
        status: SnapshotStatus,
    },
    /// The snapshot is not usable.
    #[error("snapshot `{tag}` is {status}, not ready{}", because(reason))]
    SnapshotNotReady {
        /// The tag.
        tag: SnapshotTag,
        /// Its state.
        status: SnapshotStatus,
        /// Why it failed.
        reason: Option<String>,
    },
    /// A part of the snapshot is missing or damaged.
    #[error("snapshot `{tag}` cannot be used: {what} `{layer}` is {state}")]
    SnapshotDamaged {
        /// The tag.
        tag: SnapshotTag,
        /// Which part.
        what: &'static str,
        /// Which layer or file.
        layer: String,
        /// `missing` or how it is damaged.
        state: String,
    },
    /// The snapshot can be seen because it is shared, and belongs to somebody else.
    #[error("snapshot `{tag}` is shared with you, and not yours to change")]
    NotYours {
        /// The tag.
        tag: SnapshotTag,
    },
    /// Only an admin may do that.
    #[error("{what} is for admins")]
    AdminOnly {
        /// What was asked for.
        what: &'static str,
    },
    /// The snapshot was made by a machine that this host cannot reproduce.
    #[error("snapshot `{tag}` was made with {made_with}, this daemon runs {running}")]
    Incompatible {
        /// The tag.
        tag: SnapshotTag,
        /// What it needs.
        made_with: String,
        /// What is here.
        running: String,
    },
    /// Others depend on the snapshot.
    #[error("snapshot `{tag}` is needed by: {dependents}")]
    SnapshotInUse {
        /// The tag.
        tag: SnapshotTag,
        /// Sandboxes and snapshots, comma-separated.
        dependents: String,
    },
    /// The sandbox's state does not permit the request.
    #[error("sandbox `{id}` is {state}{}", because(reason))]
    SandboxNotRunning {
        /// The sandbox.
        id: SandboxId,
        /// Its state.
        state: SandboxState,
        /// Why it is dead.
        reason: Option<String>,
    },
    /// Too many requests wait for one sandbox.
    #[error("sandbox `{id}` has too many requests waiting")]
    SandboxBusy {
        /// The sandbox.
        id: SandboxId,
    },
    /// The daemon has as much as it is allowed to.
    #[error("the limit `{limit}` of {max} is reached: {in_use} in use, {asked} more asked for")]
    LimitReached {
        /// As in the configuration.
        limit: &'static str,
        /// What is allowed.
        max: String,
        /// What there is.
        in_use: String,
        /// What the request needs.
        asked: String,
    },
    /// The sandbox was to have a memory limit, and nothing here would enforce it.
    #[error("memory_limit_mib: {reason}")]
    MemoryLimitUnavailable {
        /// What stands in the way.
        reason: String,
    },
    /// The sandbox was to have a network namespace of its own, and this daemon cannot make one.
    #[error("per_child_netns: a network namespace cannot be made here: {reason}")]
    OwnNetworkUnavailable {
        /// The system's word.
        reason: String,
    },
    /// The kernel ended the VMM, because with its guest it wanted more memory than it may have.
    #[error(transparent)]
    MemoryLimitReached(Arc<VmmError>),
    /// The sandbox's disk consists of as many overlays as are allowed.
    #[error("sandbox `{id}` cannot be branched again: its disk has too many overlays")]
    ChainTooDeep {
        /// The sandbox.
        id: SandboxId,
    },
    /// The guest agent did not confirm that a child has an identity of its own.
    #[error(
        "a child of snapshot `{tag}` was destroyed: its guest agent did not confirm the renewal"
    )]
    RenewalNotConfirmed {
        /// The snapshot.
        tag: SnapshotTag,
        /// What the guest agent said, or that it said nothing.
        #[source]
        source: GuestError,
    },
    /// The guest did not come up.
    #[error("the guest of image `{image}` did not start; its console ends with: {console}")]
    BootFailed {
        /// The image.
        image: String,
        /// End of the console.
        console: String,
        /// What the guest agent's connection said.
        #[source]
        source: GuestError,
    },
    /// The command run before the freeze failed.
    #[error("the warm-up command exited with {exit_code}: {output}")]
    WarmFailed {
        /// Its exit code.
        exit_code: i32,
        /// End of its output.
        output: String,
    },
    /// Not enough space for what the request may need.
    #[error("{needed} are needed in `{}`, {free} are free", directory.display())]
    NoSpace {
        /// The file system.
        directory: PathBuf,
        /// Bytes needed, with reserve.
        needed: ByteCount,
        /// Bytes free.
        free: ByteCount,
    },
    /// A field of the request is out of bounds.
    #[error("{field}: {problem}")]
    BadRequest {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// `live` cannot be done on this host.
    #[error("a live branch is not possible here")]
    LiveUnavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The guest agent's answer, or its absence.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A request about a background process.
    #[error(transparent)]
    Process(ProcessError),
    /// The VMM failed.
    #[error(transparent)]
    Vmm(Arc<VmmError>),
    /// Guest memory could not be captured.
    #[error(transparent)]
    Capture(Arc<CaptureError>),
    /// The store failed.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// No operation has this id, or it ended so long ago that it is forgotten.
    #[error("there is no operation `{id}`")]
    UnknownOperation {
        /// The id.
        id: OperationId,
    },
    /// The operation has ended, or has come too far.
    #[error("operation `{id}` cannot be cancelled: {reason}")]
    NotCancellable {
        /// The operation.
        id: OperationId,
        /// What stands in the way.
        reason: String,
    },
    /// Somebody cancelled the operation that did this.
    #[error("operation `{id}` was cancelled")]
    Cancelled {
        /// The operation.
        id: OperationId,
    },
    /// A task of the engine died; a defect of forkd.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<VmmError> for EngineError {
    fn from(error: VmmError) -> Self {
        match error {
            VmmError::MemoryLimitReached { .. } => Self::MemoryLimitReached(Arc::new(error)),
            other => Self::Vmm(Arc::new(other)),
        }
    }
}

impl From<CaptureError> for EngineError {
    fn from(error: CaptureError) -> Self {
        Self::Capture(Arc::new(error))
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace { directory, needed, free } => {
                Self::NoSpace { directory, needed, free }
            }
            other => Self::Store(Arc::new(other)),
        }
    }
}

impl From<ProcessError> for EngineError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Guest(error) => Self::Guest(error),
            other => Self::Process(other),
        }
    }
}

/// A known reason as the end of a sentence.
fn because(reason: &Option<String>) -> String {
    reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// An error and its causes in one line. A cause that the text above it repeats is left out.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Middle);
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Middle(std::io::Error);

    #[test]
    fn causes_follow_once_each() {
        let error = Outer(Middle(std::io::Error::other("inner")));
        assert_eq!(describe(&error), "outer: inner");
    }
}
