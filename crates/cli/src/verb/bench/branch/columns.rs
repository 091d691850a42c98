//! The columns of rows of `forkd bench branch`.

use crate::verb::bench::row::Sheet;

/// The name of rows that have no branch in them.
pub(super) const FLOOR: &str = "floor";

/// `mode` is a mode or [`FLOOR`]; `wait` is what the request waited for, nothing in a floor.
pub(super) static SHEET: Sheet = Sheet {
    labels: &["mode", "wait"],
    figures: &[
        "pause_ms",
        "held_by_vmm_ms",
        "phases_ms.prepare",
        "phases_ms.pause",
        "phases_ms.save_device_state",
        "phases_ms.freeze_disk",
        "phases_ms.protect",
        "phases_ms.resume",
        "phases_ms.sweep",
        "phases_ms.seal",
        "phases_ms.publish",
        "round_trip_ms",
        "ready_ms",
        "durable_ms",
        "dirty_bytes",
        "captured_bytes",
        "stored_bytes",
        "faults",
        "fault_service_p50_ms",
        "fault_service_max_ms",
        "guest_gap_ms",
        "writer_before_mib_per_s",
        "writer_after_mib_per_s",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_all_phases_in_order() {
        let phases = forkd_types::BranchPhase::ALL.map(|phase| format!("phases_ms.{phase}"));
        let named: Vec<_> = SHEET.figures.iter().filter(|n| n.starts_with("phases")).collect();
        assert!(named.iter().zip(&phases).all(|(column, phase)| **column == phase), "{named:?}");
        assert_eq!(named.len(), phases.len());
    }
}
