//! Why a recipe is refused.

/// What is wrong with a recipe, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Problem {
    /// The line, counted from one.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What is wrong with a part of a recipe, and what to do. Whoever reads the part knows its line.
pub(crate) type Refusal = (String, String);

pub(crate) fn refuse<T>(what: impl Into<String>, remedy: impl Into<String>) -> Result<T, Refusal> {
    Err((what.into(), remedy.into()))
}

impl Problem {
    pub(crate) fn new(line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line, what: what.into(), remedy: remedy.into() }
    }
}
