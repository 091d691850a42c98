//! Who asks, and what of all there is exists for them.
//!
//! Guarantees: what a caller may not see is answered as what does not exist, with the same error;
//! it is in no list and in no event. What a caller makes belongs to it.
//!
//! Does not do: find out who asks.

use forkd_types::{Owner, SnapshotTag};

use crate::{EngineError, Operation, Sandbox, Snapshot};

/// How much of what others own exists for a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// All of it.
    Admin,
    /// Shared snapshots, to be looked at and started from.
    User,
}

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    owner: Owner,
    role: Role,
}

/// The daemon's own user.
impl Default for Caller {
    fn default() -> Self {
        Self::new(Owner::default(), Role::Admin)
    }
}

impl Caller {
    /// What this caller makes belongs to `owner`.
    #[must_use]
    pub const fn new(owner: Owner, role: Role) -> Self {
        Self { owner, role }
    }

    /// To whom belongs what it makes.
    #[must_use]
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Whether all that others own exists for it too.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    /// Whether what belongs to `owner` is its to change.
    pub(crate) fn controls(&self, owner: &Owner) -> bool {
        self.is_admin() || self.owner == *owner
    }

    pub(crate) fn sees_snapshot(&self, snapshot: &Snapshot) -> bool {
        snapshot.shared || self.controls(snapshot.tag.owner())
    }

    pub(crate) fn sees_sandbox(&self, sandbox: &Sandbox) -> bool {
        self.controls(&sandbox.options.owner)
    }

    pub(crate) fn sees_operation(&self, operation: &Operation) -> bool {
        self.controls(&operation.owner)
    }

    /// Refuses a tag for a new snapshot that would be another owner's. Whether that owner has such
    /// a snapshot makes no difference.
    pub(crate) fn check_new(
        &self,
        field: &'static str,
        tag: &SnapshotTag,
    ) -> Result<(), EngineError> {
        if *tag.owner() == self.owner {
            return Ok(());
        }
        let problem = format!("a new snapshot is yours: leave out `{}/`", tag.owner());
        Err(EngineError::BadRequest { field, problem })
    }
}
