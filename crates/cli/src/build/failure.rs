//! Why a step failed, with all that a program wants to know of it.

use crate::console::report::Hinted;

/// A step that was not done.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {step}")]
pub(crate) struct StepFailed {
    /// Its number, counted from one.
    pub(super) number: usize,
    /// Where it is written.
    pub(super) line: usize,
    /// The step in one line.
    pub(super) step: String,
    /// The sandbox, if it stays.
    pub(super) sandbox: Option<String>,
    #[source]
    pub(super) source: anyhow::Error,
}

/// A program of a step that did not end as it should, or did not get ready.
#[derive(Debug, thiserror::Error)]
#[error("{told}")]
pub(super) struct ProgramFailed {
    /// None for one that still runs, or that a signal or its time limit has ended.
    pub(super) exit_code: Option<i32>,
    /// What it wrote.
    pub(super) output: String,
    #[source]
    told: Hinted,
}

impl ProgramFailed {
    /// `how` says in few words what became of it.
    pub(super) fn new(how: &str, exit_code: Option<i32>, output: String) -> Self {
        let message = match output.trim_end() {
            "" => format!("{how}; it wrote nothing"),
            wrote => format!("{how}; it wrote:\n{wrote}"),
        };
        let hint = "build with --keep to look around in the sandbox of the step";
        Self { exit_code, output, told: Hinted::new(message, hint) }
    }
}
