//! One check and how it went.

use serde::Serialize;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Works, with less: slower, or without something that not everybody needs.
    Warn,
    /// Required, and does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What was found.
    pub detail: String,
    /// What to do about it, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, detail: detail.into(), remedy: None }
    }

    /// Something is slower, or missing that is optional.
    pub fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name, outcome: Outcome::Warn, detail: detail.into(), remedy }
    }

    /// Required, and does not work.
    pub fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { outcome: Outcome::Fail, ..Self::warn(name, detail, remedy) }
    }

    /// Not made, because it needs what another check found to be missing.
    pub(super) fn not_made(name: &'static str) -> Self {
        Self::warn(name, "not tried: it needs what failed above", "correct that, then ask again")
    }

    /// Whether what was checked can be used.
    pub(super) fn is_usable(&self) -> bool {
        self.outcome != Outcome::Fail
    }
}
