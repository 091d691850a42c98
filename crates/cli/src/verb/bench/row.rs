//! One measured branch, or one measurement of the floor: a row of the result.
//!
//! A figure that could not be measured is null (in CSV: empty), and the note says why. It is never
//! 0.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The name of rows that have no branch in them.
pub(super) const FLOOR: &str = "floor";

/// Figures in the order of columns. Those of the snapshot have the names that they have there; a
/// dot leads into an object.
pub(super) const FIGURES: [&str; 23] = [
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
];

/// Columns beside the figures.
const FIRST_COLUMNS: [&str; 3] = ["iteration", "mode", "wait"];
const LAST_COLUMN: &str = "note";

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) iteration: u32,
    /// `live`, `diff`, `full`, or [`FLOOR`].
    pub(super) mode: String,
    /// What the request waited for: `ready`, `resumed`, or nothing in a floor.
    pub(super) wait: String,
    figures: [Value; FIGURES.len()],
    notes: Vec<String>,
}

impl Row {
    pub(super) fn new(iteration: u32, mode: &str, wait: &str) -> Self {
        Self {
            iteration,
            mode: mode.to_owned(),
            wait: wait.to_owned(),
            figures: [const { Value::Null }; FIGURES.len()],
            notes: Vec::new(),
        }
    }

    /// Sets a figure, or says why there is none.
    pub(super) fn set(&mut self, name: &str, value: Result<f64, String>) {
        match value {
            Ok(value) => *self.slot(name) = Value::from(value),
            Err(reason) => self.notes.push(format!("{name}: {reason}")),
        }
    }

    /// Takes all figures of a snapshot that `info`, as the daemon wrote it, has.
    pub(super) fn take_from_snapshot(&mut self, info: &Value) {
        let no_fault = info["faults"].as_u64() == Some(0);
        for (index, name) in FIGURES.into_iter().enumerate() {
            if !is_of_snapshot(name) {
                continue;
            }
            let found = name.split('.').fold(info, |object, key| &object[key]);
            if found.is_number() {
                self.figures[index] = found.clone();
            } else if name.starts_with("fault_service") && no_fault {
                self.note(&format!("{name}: no write fault came"));
            } else {
                self.note(&format!("{name}: the daemon reports none"));
            }
        }
    }

    pub(super) fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A figure, if it was measured.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        let index = FIGURES.iter().position(|known| *known == name)?;
        self.figures[index].as_f64()
    }

    fn slot(&mut self, name: &str) -> &mut Value {
        let index = FIGURES.iter().position(|known| *known == name);
        let index = index.unwrap_or_else(|| panic!("`{name}` is no figure"));
        &mut self.figures[index]
    }

    /// The line of column names.
    pub(super) fn csv_header() -> String {
        let columns = FIRST_COLUMNS.into_iter().chain(FIGURES).chain([LAST_COLUMN]);
        columns.collect::<Vec<_>>().join(",")
    }

    /// The row as a line of CSV.
    pub(super) fn to_csv(&self) -> String {
        let mut cells = vec![self.iteration.to_string(), self.mode.clone(), self.wait.clone()];
        let shown = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
        cells.extend(self.figures.iter().map(shown));
        cells.push(format!("\"{}\"", self.notes.join("; ").replace('"', "\"\"")));
        cells.join(",")
    }
}

/// Whether the daemon reports this figure; the others are measured here.
fn is_of_snapshot(name: &str) -> bool {
    let ours = ["round_trip_ms", "durable_ms", "guest_gap_ms"];
    !ours.contains(&name) && !name.starts_with("writer_")
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("iteration", &self.iteration)?;
        map.serialize_entry("mode", &self.mode)?;
        map.serialize_entry("wait", &self.wait)?;
        for (name, value) in FIGURES.iter().zip(&self.figures) {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry(LAST_COLUMN, &self.notes.join("; "))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_is_null_with_a_reason_and_never_zero() {
        let mut row = Row::new(3, "live", "ready");
        row.take_from_snapshot(&json!({
            "pause_ms": 1.25, "faults": 0, "stored_bytes": 4096, "phases_ms": {"prepare": 0.5},
        }));
        row.set("round_trip_ms", Ok(7.5));
        row.set("guest_gap_ms", Err("the \"meter\" is gone".to_owned()));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["pause_ms"], &json["phases_ms.prepare"]), (&json!(1.25), &json!(0.5)));
        assert_eq!((&json["faults"], &json["stored_bytes"]), (&json!(0), &json!(4096)));
        for absent in ["ready_ms", "captured_bytes", "fault_service_max_ms", "guest_gap_ms"] {
            assert_eq!(json[absent], Value::Null, "{absent}");
            assert!(json["note"].as_str().unwrap().contains(&format!("{absent}: ")), "{absent}");
        }
        assert!(row.notes().contains(&"fault_service_p50_ms: no write fault came".to_owned()));
        assert_eq!(row.figure("pause_ms"), Some(1.25));
        assert_eq!(row.figure("ready_ms"), None);
    }

    #[test]
    fn a_csv_line_has_a_cell_for_each_column_and_a_quoted_note() {
        let mut row = Row::new(1, "diff", "resumed");
        row.set("pause_ms", Ok(2.0));
        row.note("a, \"b\"");
        let line = row.to_csv();
        assert!(line.starts_with("1,diff,resumed,2.0,,"), "{line}");
        let (cells, note) = line.split_once(",\"").unwrap();
        assert_eq!(cells.split(',').count() + 1, Row::csv_header().split(',').count());
        assert_eq!(note, "a, \"\"b\"\"\"");
    }

    #[test]
    fn the_columns_are_all_phases_in_order() {
        let phases = forkd_types::BranchPhase::ALL.map(|phase| format!("phases_ms.{phase}"));
        let named: Vec<_> = FIGURES.iter().filter(|name| name.starts_with("phases")).collect();
        assert!(named.iter().zip(&phases).all(|(column, phase)| **column == phase), "{named:?}");
        assert_eq!(named.len(), phases.len());
    }
}
