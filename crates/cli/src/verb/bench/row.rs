//! One line of a result: what was measured, its figures, and why some are missing.
//!
//! A figure that could not be measured is null (in CSV: empty), and the note says why. It is never
//! 0.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The columns of all rows of one measurement, between `iteration` and `note`.
#[derive(Debug, PartialEq)]
pub(super) struct Sheet {
    /// What kind of row it is. Rows of one kind are summarised together.
    pub(super) labels: &'static [&'static str],
    /// Figures in the order of columns. Those of the API have the names that they have there; a
    /// dot leads into an object.
    pub(super) figures: &'static [&'static str],
}

const FIRST_COLUMN: &str = "iteration";
const LAST_COLUMN: &str = "note";

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) sheet: &'static Sheet,
    iteration: u32,
    pub(super) labels: Vec<String>,
    figures: Vec<Value>,
    notes: Vec<String>,
}

impl Row {
    pub(super) fn new(sheet: &'static Sheet, iteration: u32, labels: &[&str]) -> Self {
        Self {
            sheet,
            iteration,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            figures: vec![Value::Null; sheet.figures.len()],
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

    /// Takes the figures that are `reported` from what the daemon wrote.
    pub(super) fn take(&mut self, info: &Value, reported: impl Fn(&str) -> bool) {
        for (index, name) in self.sheet.figures.iter().enumerate().filter(|(_, n)| reported(n)) {
            let found = name.split('.').fold(info, |object, key| &object[key]);
            if found.is_number() {
                self.figures[index] = found.clone();
            } else {
                self.notes.push(format!("{name}: the daemon reports none"));
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
        let index = self.sheet.figures.iter().position(|known| *known == name)?;
        self.figures[index].as_f64()
    }

    fn slot(&mut self, name: &str) -> &mut Value {
        let index = self.sheet.figures.iter().position(|known| *known == name);
        let index = index.unwrap_or_else(|| panic!("`{name}` is no figure"));
        &mut self.figures[index]
    }

    /// The row as a line of CSV.
    pub(super) fn to_csv(&self) -> String {
        let mut cells = vec![self.iteration.to_string()];
        cells.extend(self.labels.iter().cloned());
        let shown = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
        cells.extend(self.figures.iter().map(shown));
        cells.push(format!("\"{}\"", self.notes.join("; ").replace('"', "\"\"")));
        cells.join(",")
    }
}

impl Sheet {
    /// The line of column names.
    pub(super) fn csv_header(&self) -> String {
        [&[FIRST_COLUMN], self.labels, self.figures, &[LAST_COLUMN]].concat().join(",")
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(FIRST_COLUMN, &self.iteration)?;
        for (name, value) in self.sheet.labels.iter().zip(&self.labels) {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in self.sheet.figures.iter().zip(&self.figures) {
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

    static SHEET: Sheet =
        Sheet { labels: &["mode", "wait"], figures: &["pause_ms", "phases_ms.seal", "own_ms"] };

    #[test]
    fn what_is_not_there_is_null_with_a_reason_and_never_zero() {
        let mut row = Row::new(&SHEET, 3, &["live", "ready"]);
        row.take(&json!({"pause_ms": 1.25, "own_ms": 9}), |name| name != "own_ms");
        row.set("own_ms", Err("the \"meter\" is gone".to_owned()));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["mode"], &json["pause_ms"]), (&json!("live"), &json!(1.25)));
        for absent in ["phases_ms.seal", "own_ms"] {
            assert_eq!(json[absent], Value::Null, "{absent}");
            assert!(json["note"].as_str().unwrap().contains(&format!("{absent}: ")), "{absent}");
        }
        assert_eq!(row.figure("pause_ms"), Some(1.25));
        assert_eq!(row.figure("own_ms"), None);
    }

    #[test]
    fn a_csv_line_has_a_cell_for_each_column_and_a_quoted_note() {
        let mut row = Row::new(&SHEET, 1, &["diff", "resumed"]);
        row.set("pause_ms", Ok(2.0));
        row.note("a, \"b\"");
        let line = row.to_csv();
        assert!(line.starts_with("1,diff,resumed,2.0,,"), "{line}");
        let (cells, note) = line.split_once(",\"").unwrap();
        assert_eq!(cells.split(',').count() + 1, SHEET.csv_header().split(',').count());
        assert_eq!(note, "a, \"\"b\"\"\"");
    }
}
