//! What a build gives, as `--json` prints it.

use serde::Serialize;

/// What was done.
#[derive(Debug, Serialize)]
pub(crate) struct Built {
    /// The snapshot to start from.
    pub(crate) tag: String,
    /// All steps, in order.
    pub(crate) steps: Vec<Done>,
    /// From the request to the snapshot, in milliseconds.
    pub(crate) ms: f64,
}

/// What became of a step.
#[derive(Debug, Serialize)]
pub(crate) struct Done {
    /// Where it is written.
    pub(super) line: usize,
    /// The step in one line.
    pub(super) step: String,
    /// Whether it was there.
    pub(super) cached: bool,
    /// How long it took, with its branch.
    pub(super) ms: f64,
    /// The snapshot after it; none for a step that changes only what later ones are run with.
    pub(super) snapshot_tag: Option<String>,
}
