//! Many rows in few numbers: the distribution of each figure for each kind of row, and whether it
//! stays the same along a chain.

use serde::Serialize;
use serde_json::{Map, Value};

use super::row::Row;
use super::statistics::Distribution;
use crate::console::output::{self, Align, Table};

/// How many rows at either end of a chain are compared.
const CHAIN_END_ROWS: usize = 10;

/// How a figure is distributed over rows of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Summary {
    /// The labels of the rows.
    #[serde(flatten)]
    kind: Map<String, Value>,
    figure: &'static str,
    #[serde(flatten)]
    distribution: Distribution,
}

/// The median of a figure over the first rows of one kind, and over the last.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Trend {
    #[serde(flatten)]
    kind: Map<String, Value>,
    figure: &'static str,
    /// Rows at either end.
    rows: usize,
    first_p50: f64,
    last_p50: f64,
}

/// Kinds of rows in the order in which they came first, each with its rows.
fn kinds(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut kinds: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match kinds.iter_mut().find(|kind| kind[0].labels == row.labels) {
            Some(of_kind) => of_kind.push(row),
            None => kinds.push(vec![row]),
        }
    }
    kinds
}

/// The names and words that all rows of a kind have.
fn labels(rows: &[&Row]) -> Map<String, Value> {
    let row = rows[0];
    let named = row.sheet.labels.iter().zip(&row.labels);
    named.map(|(name, word)| ((*name).to_owned(), word.as_str().into())).collect()
}

/// Summarises every figure that was measured at all.
pub(super) fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for rows in kinds(rows) {
        for figure in rows[0].sheet.figures {
            let values = rows.iter().filter_map(|row| row.figure(figure)).collect();
            let Some(distribution) = Distribution::of(values) else { continue };
            summaries.push(Summary { kind: labels(&rows), figure, distribution });
        }
    }
    summaries
}

/// Compares the ends of a chain. Nothing to compare when there are fewer than two rows of a kind.
pub(super) fn trends(rows: &[Row]) -> Vec<Trend> {
    let mut trends = Vec::new();
    for of_kind in kinds(rows) {
        let ends = CHAIN_END_ROWS.min(of_kind.len() / 2);
        let (first, last) = (&of_kind[..ends], &of_kind[of_kind.len() - ends..]);
        for figure in of_kind[0].sheet.figures {
            let median = |rows: &[&Row]| {
                let values = rows.iter().filter_map(|row| row.figure(figure)).collect();
                Distribution::of(values).map(|distribution| distribution.p50)
            };
            let (Some(first_p50), Some(last_p50)) = (median(first), median(last)) else { continue };
            trends.push(Trend { kind: labels(&of_kind), figure, rows: ends, first_p50, last_p50 });
        }
    }
    trends
}

/// A table with the labels `heads`, the figure, and then `numbers`.
fn table_of(heads: &[&'static str], numbers: &[&'static str]) -> Table {
    let left = heads.iter().chain(&["FIGURE"]).map(|head| (*head, Align::Left));
    let right = numbers.iter().map(|head| (*head, Align::Right));
    Table::new(&left.chain(right).collect::<Vec<_>>())
}

fn words(kind: &Map<String, Value>) -> impl Iterator<Item = String> + '_ {
    kind.values().map(|word| word.as_str().unwrap_or_default().to_owned())
}

/// The summaries for people, with the heads of their labels.
pub(super) fn table(heads: &[&'static str], summaries: &[Summary]) -> Table {
    let mut table = table_of(heads, &["N", "P50", "P90", "P99", "MAX"]);
    for Summary { kind, figure, distribution } in summaries {
        let Distribution { n, p50, p90, p99, max } = *distribution;
        let numbers = [p50, p90, p99, max].map(|value| shown(figure, value));
        let cells = words(kind).chain([(*figure).to_owned(), n.to_string()]).chain(numbers);
        table.row(cells.collect::<Vec<_>>());
    }
    table
}

/// The trends for people.
pub(super) fn trend_table(heads: &[&'static str], trends: &[Trend]) -> Table {
    let mut table = table_of(heads, &["ROWS", "P50 OF THE FIRST", "P50 OF THE LAST"]);
    for Trend { kind, figure, rows, first_p50, last_p50 } in trends {
        let numbers = [*first_p50, *last_p50].map(|value| shown(figure, value));
        let cells = words(kind).chain([(*figure).to_owned(), rows.to_string()]).chain(numbers);
        table.row(cells.collect::<Vec<_>>());
    }
    table
}

/// Each different note with how many rows have it, in the order in which they came first.
pub(super) fn notes(rows: &[Row]) -> Vec<(String, usize)> {
    let mut notes: Vec<(String, usize)> = Vec::new();
    for note in rows.iter().flat_map(Row::notes) {
        match notes.iter_mut().find(|(known, _)| known == note) {
            Some((_, count)) => *count += 1,
            None => notes.push((note.clone(), 1)),
        }
    }
    notes
}

/// A figure in the unit of its name.
fn shown(figure: &str, value: f64) -> String {
    if figure.ends_with("_bytes") {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        return output::size(value as u64);
    }
    if figure.ends_with("_mib_per_s") {
        return format!("{value:.1} MiB/s");
    }
    if figure.ends_with("_percent") {
        return format!("{value:.2} %");
    }
    if figure.ends_with("_ms") || figure.contains("phases_ms.") {
        return format!("{value:.2} ms");
    }
    if figure.ends_with("_per_s_per_cpu") {
        return format!("{value:.2} /s");
    }
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::super::row::Sheet;
    use super::*;

    static SHEET: Sheet = Sheet { labels: &["mode", "wait"], figures: &["pause_ms", "ready_ms"] };

    fn row(iteration: u32, mode: &str, pause_ms: f64) -> Row {
        let mut row = Row::new(&SHEET, iteration, &[mode, "ready"]);
        row.set("pause_ms", Ok(pause_ms));
        row
    }

    #[test]
    fn rows_of_one_kind_are_summarised_together_and_unmeasured_figures_left_out() {
        let rows = [row(1, "live", 1.0), row(1, "full", 9.0), row(2, "live", 3.0)];
        let json = serde_json::to_value(summaries(&rows)).unwrap();
        let found: Vec<_> = json.as_array().unwrap().iter().collect();
        let of = |at: usize, name: &str| found[at][name].clone();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (of(0, "mode"), of(0, "n"), of(0, "max")),
            ("live".into(), 2.into(), 3.0.into())
        );
        assert_eq!(
            (of(1, "mode"), of(1, "n"), of(1, "max")),
            ("full".into(), 1.into(), 9.0.into())
        );
        assert_eq!((of(1, "wait"), of(1, "figure")), ("ready".into(), "pause_ms".into()));
    }

    #[test]
    fn the_ends_of_a_chain_do_not_overlap() {
        let rows: Vec<Row> = (1..=100).map(|n| row(n, "live", f64::from(n))).collect();
        let all = trends(&rows);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].rows, all[0].first_p50, all[0].last_p50), (10, 5.0, 95.0));
        let few = trends(&rows[..5]);
        assert_eq!((few[0].rows, few[0].first_p50, few[0].last_p50), (2, 1.0, 4.0));
        assert!(trends(&rows[..1]).is_empty());
    }

    #[test]
    fn equal_notes_are_told_once_with_their_number() {
        let mut rows = [row(1, "live", 1.0), row(2, "live", 1.0), row(3, "live", 1.0)];
        rows[0].note("x");
        rows[2].note("x");
        assert_eq!(notes(&rows), [("x".to_owned(), 2)]);
    }

    #[test]
    fn figures_are_shown_in_their_unit() {
        assert_eq!(shown("dirty_bytes", 1_048_576.0), "1.0 MiB");
        assert_eq!(shown("phases_ms.seal", 0.127), "0.13 ms");
        assert_eq!(shown("writer_after_mib_per_s", 12.34), "12.3 MiB/s");
        assert_eq!(shown("children_per_s_per_cpu", 12.345), "12.35 /s");
        assert_eq!(shown("idle_cpu_percent", 0.123), "0.12 %");
        assert_eq!(shown("faults", 7.0), "7");
    }
}
