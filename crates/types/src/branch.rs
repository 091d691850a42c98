//! Words of a branch: its phases and its modes. The same strings are span names, metric labels, API
//! fields, table columns and headings of `docs/branch.md`.

use std::str::FromStr;

use crate::Named as _;
use crate::name::named;

named! {
    /// One phase of a branch, in the order in which they happen.
    BranchPhase {
        /// Space, overlay, sink; the guest runs.
        Prepare = "prepare",
        /// The pause window opens: the vCPUs stop and the disks drain.
        Pause = "pause",
        /// Everything that is not RAM is written to a file.
        SaveDeviceState = "save_device_state",
        /// The disk overlay becomes immutable; the source goes on in a new one.
        FreezeDisk = "freeze_disk",
        /// The dirty set is closed and write-protected (or copied, where the mode says so).
        Protect = "protect",
        /// The guest runs again: the pause window ends.
        Resume = "resume",
        /// Pages are captured while the guest runs; write faults first.
        Sweep = "sweep",
        /// The layer becomes immutable and the snapshot usable.
        Seal = "seal",
        /// The snapshot becomes durable.
        Publish = "publish",
    }
}

impl BranchPhase {
    /// Whether the guest stands still in this phase.
    #[must_use]
    pub const fn is_in_pause_window(self) -> bool {
        matches!(
            self,
            Self::Pause | Self::SaveDeviceState | Self::FreezeDisk | Self::Protect | Self::Resume
        )
    }
}

named! {
    /// Which pages a branch captures, and when.
    BranchMode or Live {
        /// All present pages, before the guest resumes. The snapshot depends on no other.
        Full = "full",
        /// Dirty pages, before the guest resumes.
        Diff = "diff",
        /// Dirty pages, after the guest resumed; write-protected until captured.
        Live = "live",
    }
}

/// The given word is no branch mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a branch mode: use `live`, `diff` or `full`")]
pub struct UnknownMode(pub String);

impl FromStr for BranchMode {
    type Err = UnknownMode;

    fn from_str(value: &str) -> Result<Self, UnknownMode> {
        Self::from_name(value).ok_or_else(|| UnknownMode(value.chars().take(32).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
