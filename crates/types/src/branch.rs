//! Words of a branch: its phases and its modes. The same strings are span names, metric labels, API
//! fields, table columns and headings of `docs/branch.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One phase of a branch, in the order in which they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchPhase {
    /// Space, overlay, sink; the guest runs.
    Prepare,
    /// The pause window opens: the vCPUs stop and the disks drain.
    Pause,
    /// Everything that is not RAM is written to a file.
    SaveDeviceState,
    /// The disk overlay becomes immutable; the source goes on in a new one.
    FreezeDisk,
    /// The dirty set is closed and write-protected (or copied, where the mode says so).
    Protect,
    /// The guest runs again: the pause window ends.
    Resume,
    /// Pages are captured while the guest runs; write faults first.
    Sweep,
    /// The layer becomes immutable and the snapshot usable.
    Seal,
    /// The snapshot becomes durable.
    Publish,
}

impl BranchPhase {
    /// All phases in order.
    pub const ALL: [Self; 9] = [
        Self::Prepare,
        Self::Pause,
        Self::SaveDeviceState,
        Self::FreezeDisk,
        Self::Protect,
        Self::Resume,
        Self::Sweep,
        Self::Seal,
        Self::Publish,
    ];

    /// The phase's name in spans, metrics, API and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Pause => "pause",
            Self::SaveDeviceState => "save_device_state",
            Self::FreezeDisk => "freeze_disk",
            Self::Protect => "protect",
            Self::Resume => "resume",
            Self::Sweep => "sweep",
            Self::Seal => "seal",
            Self::Publish => "publish",
        }
    }

    /// Whether the guest stands still in this phase.
    #[must_use]
    pub const fn is_in_pause_window(self) -> bool {
        matches!(
            self,
            Self::Pause | Self::SaveDeviceState | Self::FreezeDisk | Self::Protect | Self::Resume
        )
    }
}

impl fmt::Display for BranchPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which pages a branch captures, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchMode {
    /// All present pages, before the guest resumes. The snapshot depends on no other.
    Full,
    /// Dirty pages, before the guest resumes.
    Diff,
    /// Dirty pages, after the guest resumed; write-protected until captured.
    #[default]
    Live,
}

impl BranchMode {
    /// The mode's name in API, command line and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Diff => "diff",
            Self::Live => "live",
        }
    }
}

impl fmt::Display for BranchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The given word is no branch mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a branch mode: use `live`, `diff` or `full`")]
pub struct UnknownMode(pub String);

impl FromStr for BranchMode {
    type Err = UnknownMode;

    fn from_str(value: &str) -> Result<Self, UnknownMode> {
        match value {
            "full" => Ok(Self::Full),
            "diff" => Ok(Self::Diff),
            "live" => Ok(Self::Live),
            other => Err(UnknownMode(other.chars().take(32).collect())),
        }
    }
}

/// How long each phase of one branch took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhaseTimes(BTreeMap<BranchPhase, Duration>);

impl PhaseTimes {
    /// Records a phase; a second record of the same phase adds to the first.
    pub fn record(&mut self, phase: BranchPhase, took: Duration) {
        *self.0.entry(phase).or_default() += took;
    }

    /// The time of `phase`, if it has been recorded.
    #[must_use]
    pub fn get(&self, phase: BranchPhase) -> Option<Duration> {
        self.0.get(&phase).copied()
    }

    /// Recorded phases in order.
    pub fn iter(&self) -> impl Iterator<Item = (BranchPhase, Duration)> + '_ {
        self.0.iter().map(|(phase, took)| (*phase, *took))
    }

    /// Milliseconds by phase name, as in the API's `phases_ms`.
    #[must_use]
    pub fn as_milliseconds(&self) -> BTreeMap<String, f64> {
        self.iter().map(|(p, d)| (p.name().to_owned(), d.as_secs_f64() * 1e3)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_names_are_their_serde_names() {
        for phase in BranchPhase::ALL {
            let json = serde_json::to_string(&phase).unwrap();
            assert_eq!(json, format!("\"{}\"", phase.name()));
        }
    }

    #[test]
    fn exactly_the_phases_between_pause_and_resume_hold_the_guest() {
        let held: Vec<_> =
            BranchPhase::ALL.into_iter().filter(|p| p.is_in_pause_window()).collect();
        assert_eq!(held.first(), Some(&BranchPhase::Pause));
        assert_eq!(held.last(), Some(&BranchPhase::Resume));
        assert_eq!(held.len(), 5);
    }

    #[test]
    fn modes_parse_from_their_names_only() {
        for mode in [BranchMode::Full, BranchMode::Diff, BranchMode::Live] {
            assert_eq!(mode.name().parse::<BranchMode>(), Ok(mode));
        }
        assert!("Live".parse::<BranchMode>().is_err());
    }
}
