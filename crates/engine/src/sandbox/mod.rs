//! Sandboxes. One task owns one VM.
//!
//! ```text
//! Engine --order--> SandboxTask (owns the Machine: VM, memory, disk)
//!    \---request--> GuestAgent (shared; never touches the VM)
//! ```
//!
//! `start` makes a machine of a snapshot, `adopt` takes one over from an earlier daemon for which
//! `record` has written it down, `task` runs its orders one after the other, `handle` is
//! what the rest of the engine sees of it.

mod adopt;
mod control;
mod handle;
mod machine;
mod record;
mod start;
mod task;
mod use_of;

pub(crate) use adopt::{adopt, limit_reached, mourn, recorded_limit};
pub(crate) use handle::{Order, SandboxHandle};
pub(crate) use machine::{LooseOverlay, Machine, Protection, WatchedMemory};
pub(crate) use start::{
    IMAGE, damaged_layer, damaged_part, image_of, open_layers, require_device_state,
    require_overlays, start_child,
};

pub(crate) use use_of::InUse;

use crate::EngineError;

/// Runs blocking work on a thread that may wait, in the span of whoever waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    let span = tracing::Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
        .await
        .map_err(|error| EngineError::Internal(format!("blocking work ended: {error}")))
}
