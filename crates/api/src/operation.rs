//! Operations and events: what goes on in the daemon.

use forkd_types::{OperationKind, OperationState, limit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::within;
use crate::{ErrorBody, FieldError, Word};

/// A long request: it can be looked at, waited for and, up to some point, cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Its name, `op-` and twelve hexadecimal digits.
    pub id: String,
    /// To whom it belongs.
    #[serde(default)]
    pub owner: String,
    /// What it does: `publish` makes a snapshot durable, `flatten` merges layers or overlays of a
    /// running sandbox, `restore` makes missing hot copies after a start of the daemon and checks
    /// what is there.
    #[schema(value_type = OperationKind)]
    pub kind: Word<OperationKind>,
    /// How it stands.
    #[schema(value_type = OperationState)]
    pub state: Word<OperationState>,
    /// What it is at, or was at last, in words: for people.
    pub step: String,
    /// Parts of the step that are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// All parts of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The snapshot that it makes, or makes durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tag: Option<String>,
    /// The sandbox that it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// When it began, in seconds since 1970.
    pub created_at_unix: u64,
    /// When it ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_unix: Option<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// Data of the event `lost`: the reader was too slow or too long away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostEvents {
    /// How many events it has missed; null when the daemon was started anew meanwhile.
    pub events: Option<u64>,
}

/// How long a request to wait may take, from the field `timeout_secs`.
///
/// # Errors
/// Names the field when it is out of bounds.
pub fn check_wait(timeout_secs: u64) -> Result<std::time::Duration, FieldError> {
    let max = limit::OPERATION_WAIT_MAX.as_secs();
    within("timeout_secs", timeout_secs, 0, max).map(std::time::Duration::from_secs)
}
