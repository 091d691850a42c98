//! The columns of rows of `forkd bench fork`.

use crate::verb::bench::row::Sheet;

/// A row of one child.
pub(super) const CHILD: &str = "child";
/// A row of all children of one request.
pub(super) const ALL: &str = "all";

/// Figures of all are empty in rows of one child, and the reverse.
pub(super) static SHEET: Sheet = Sheet {
    labels: &["kind"],
    figures: &[
        "started_ms",
        "first_answered_ms",
        "last_answered_ms",
        "children_per_s_per_cpu",
        "daemon_cpu_ms",
        "host_memory_bytes",
        "start_ms",
        "start_phases_ms.claim",
        "start_phases_ms.disk",
        "start_phases_ms.launch",
        "start_phases_ms.map",
        "start_phases_ms.network",
        "start_phases_ms.load",
        "start_phases_ms.resume",
        "start_phases_ms.renew",
        "start_phases_ms.hand_out",
        "answered_ms",
        "vmm_cpu_ms",
        "guest_cpu_ms",
        "private_start_bytes",
        "proportional_start_bytes",
        "private_answered_bytes",
        "proportional_answered_bytes",
        "private_idle_bytes",
        "proportional_idle_bytes",
        "idle_cpu_percent",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_all_phases_in_order() {
        let phases = forkd_types::StartPhase::ALL.map(|phase| format!("start_phases_ms.{phase}"));
        let named: Vec<_> = SHEET.figures.iter().filter(|n| n.contains("phases")).collect();
        assert!(named.iter().zip(&phases).all(|(column, phase)| **column == phase), "{named:?}");
        assert_eq!(named.len(), phases.len());
    }
}
