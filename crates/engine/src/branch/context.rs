//! What all phases of one branch share.

use std::time::Instant;

use forkd_types::{BranchMode, SnapshotTag};

use super::Branches;
use crate::guest::GuestAgent;
use crate::operation::Running;
use crate::sandboxes::SandboxHandle;

/// One branch.
pub(super) struct Context<'a> {
    pub(super) branches: &'a Branches,
    pub(super) handle: &'a SandboxHandle,
    pub(super) agent: &'a GuestAgent,
    pub(super) tag: &'a SnapshotTag,
    pub(super) mode: BranchMode,
    pub(super) requested_at: Instant,
    pub(super) operation: &'a Running,
}
