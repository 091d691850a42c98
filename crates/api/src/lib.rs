//! What goes over the wire of the REST interface: request and answer bodies, and the catalogue of
//! errors. The daemon writes them, clients read them; the OpenAPI document is generated from them.
//!
//! Guarantees: a request that passes its `check` has every field within the limits, and one that
//! does not is refused with the field's name; every error code has one status and one hint.
//!
//! Does not do: HTTP, I/O, or decide anything. Domain types are others, so that the engine can
//! change without the wire.

mod artifact;
mod branch;
mod catalogue;
mod check;
mod command;
mod daemon;
#[cfg(test)]
mod error_page;
mod file;
mod hub;
mod network;
mod operation;
mod options;
mod port;
mod private_network;
mod process;
mod sandbox;
mod secret;
mod snapshot;
mod text;
mod word;

pub use artifact::{Keys, PullSnapshot, PushSnapshot, PushedSnapshot, TrustKey, TrustedKey};
pub use branch::{BranchAnswer, BranchRequest, CheckedBranch, Child};
pub use catalogue::{CATALOGUE, CatalogueEntry, ErrorBody, ErrorCode, Reason};
pub use check::{FieldError, check_user};
pub use command::{
    CheckedExec, EvalAnswer, EvalDisplay, EvalPart, EvalRequest, ExecAnswer, ExecRequest,
    MISSING_BYTES_HEADER, Pong,
};
pub use daemon::{Health, Image, Version};
pub use file::{FileChange, FileEntry};
pub use hub::{HubEntry, HubListing, HubSnapshot};
pub use network::{HeaderRule, HeaderTransform, NetworkLog, NetworkLogEntry, NetworkPolicy};
pub use operation::{LostEvents, Operation, check_wait};
pub use port::{CreatePortToken, Port, PortToken, UPGRADE_PROTOCOL};
pub use private_network::{CreateNetwork, Membership, Network};
pub use process::{
    CreateProcess, OutputData, OutputEvent, Process, ProcessExit, SignalName, SignalRequest,
    TtySize,
};
pub use sandbox::{CheckedCreateSandboxes, CreateSandboxes, RollbackSandbox, Sandbox};
pub use secret::Secret;
pub use snapshot::{
    BuildEvent, CheckedCreateSnapshot, CheckedImage, CompactSnapshot, CreateSnapshot, Snapshot,
    SnapshotInfo,
};
pub use text::{OutputText, text_to_bytes};
pub use word::Word;
