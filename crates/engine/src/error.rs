//! Everything that a request to the engine can end with. The API maps each variant to a stable
//! code.

use std::path::PathBuf;
use std::sync::Arc;

use forkd_artifact::PublicKey;
use forkd_capture::CaptureError;
use forkd_oci::OciError;
use forkd_store::StoreError;
use forkd_types::network::{NetworkName, SecretName};
use forkd_types::{ByteCount, OperationId, SandboxId, SandboxState, SnapshotStatus, SnapshotTag};
use forkd_vmm::VmmError;

use crate::guest::{GuestError, ProcessError};

/// Why a request was not done. Whoever asked gets it, and the operation keeps a copy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Guests would have to be emulated, and the configuration refuses that.
    #[error(
        "guests do not run on KVM here: {reason}; emulation is refused, because it is not a \
         security boundary: use a host with hardware virtualisation, load the kvm module, and give \
         the daemon's user access to /dev/kvm; or leave out --require-kvm and FORKD_REQUIRE_KVM"
    )]
    NoKvm {
        /// What was found.
        reason: String,
    },
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
    /// An image cannot be had.
    #[error("get the image {reference}: {source}")]
    ImageUnavailable {
        /// The reference.
        reference: String,
        /// Why.
        source: Arc<OciError>,
    },
    /// A registry does not take or give a snapshot.
    #[error("use {reference}: {source}")]
    RegistryFailed {
        /// The reference.
        reference: String,
        /// Why.
        source: Arc<OciError>,
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
    /// It is not to leave this host.
    #[error("snapshot `{tag}` is private: it is neither pushed nor exported")]
    SnapshotPrivate {
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
    /// An artifact needs what this host does not have.
    #[error("the artifact does not fit this host: {problem}")]
    ArtifactUnfit {
        /// What it needs, and what is here.
        problem: String,
    },
    /// The file is no artifact, or is damaged.
    #[error("the artifact is refused: {problem}")]
    ArtifactRefused {
        /// How that shows.
        problem: String,
    },
    /// Nobody here has said that artifacts with this signature are to be trusted.
    #[error("the artifact is signed with the key {key}, which this daemon does not trust")]
    KeyNotTrusted {
        /// The key.
        key: PublicKey,
    },
    /// No trusted key has this name.
    #[error("there is no trusted key `{name}`")]
    UnknownKey {
        /// The name, cut short.
        name: String,
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
    /// The configuration limits sandboxes in a way that this host cannot.
    #[error("{option}: {reason}")]
    LimitUnavailable {
        /// As in the configuration.
        option: &'static str,
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
    /// The disk overlays that the sandbox has written since its start take what they may.
    #[error(
        "sandbox `{id}` cannot be branched again: its disk has grown by {in_use} since its start, \
         and {most} is the most for one sandbox (`sandbox_max_disk_mib`, or three times its disk); \
         fork its latest snapshot and go on there: a child has all of that for itself"
    )]
    DiskQuotaReached {
        /// The sandbox.
        id: SandboxId,
        /// What they may take.
        most: ByteCount,
        /// What they take.
        in_use: ByteCount,
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
    /// The network policy that was asked for is more than the operator permits, or too long.
    #[error("the network policy is not permitted")]
    NetworkNotPermitted(#[from] forkd_types::network::PolicyError),
    /// The sandbox was started from a snapshot without one.
    #[error("sandbox `{id}` has no network device")]
    NoNetworkDevice {
        /// The sandbox.
        id: SandboxId,
    },
    /// Header rules need a guest whose programs believe the gateway.
    #[error(
        "header rules do not work here: programs in this guest do not trust this daemon's gateway, \
         because its template (image `{image}`) was built without the gateway's certificate"
    )]
    GatewayNotTrusted {
        /// The template's image.
        image: String,
    },
    /// The caller has no secret of this name.
    #[error("there is no secret `{name}`")]
    UnknownSecret {
        /// The name.
        name: SecretName,
    },
    /// The owner has no private network of this name.
    #[error("there is no network `{name}`")]
    UnknownNetwork {
        /// The name.
        name: NetworkName,
    },
    /// The sandbox is no member of this private network.
    #[error("sandbox `{id}` is no member of network `{name}`")]
    NotMember {
        /// The sandbox.
        id: SandboxId,
        /// The network.
        name: NetworkName,
    },
    /// The owner has a private network of this name.
    #[error("the network `{name}` exists already")]
    NetworkTaken {
        /// The name.
        name: NetworkName,
    },
    /// Nothing listens on the port.
    #[error("nothing in sandbox `{id}` listens on port {port}")]
    PortClosed {
        /// The sandbox.
        id: SandboxId,
        /// The port.
        port: u16,
    },
    /// The guest has not answered a connection in time.
    #[error("sandbox `{id}` does not answer on port {port}")]
    PortSilent {
        /// The sandbox.
        id: SandboxId,
        /// The port.
        port: u16,
    },
    /// As many connections as one sandbox may have.
    #[error("sandbox `{id}` has as many connections as it may have")]
    TooManyConnections {
        /// The sandbox.
        id: SandboxId,
    },
    /// As many tokens for ports as a sandbox may have.
    #[error("the ports of {id} have as many tokens as they may have")]
    TooManyPortTokens {
        /// The sandbox.
        id: SandboxId,
    },
    /// The gateway did not do what was asked.
    #[error("the network is not available")]
    NetworkUnavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
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
