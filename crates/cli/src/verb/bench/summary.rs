//! Many rows in few numbers: the distribution of each figure for each kind of row, and whether it
//! stays the same along a chain.

use serde::Serialize;

use super::row::{FIGURES, Row};
use super::statistics::Distribution;
use crate::console::output::{self, Align, Table};

/// How many rows at either end of a chain are compared.
const CHAIN_END_ROWS: usize = 10;

/// How a figure is distributed over rows of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Summary {
    mode: String,
    wait: String,
    figure: &'static str,
    #[serde(flatten)]
    distribution: Distribution,
}

/// The median of a figure over the first rows of one kind, and over the last.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Trend {
    mode: String,
    wait: String,
    figure: &'static str,
    /// Rows at either end.
    rows: usize,
    first_p50: f64,
    last_p50: f64,
}

/// Kinds of rows in the order in which they came first, each with its rows.
fn kinds(rows: &[Row]) -> Vec<(&str, &str, Vec<&Row>)> {
    let mut kinds: Vec<(&str, &str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let known = kinds.iter_mut().find(|(mode, wait, _)| *mode == row.mode && *wait == row.wait);
        match known {
            Some((_, _, of_kind)) => of_kind.push(row),
            None => kinds.push((&row.mode, &row.wait, vec![row])),
        }
    }
    kinds
}

/// Summarises every figure that was measured at all.
pub(super) fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for (mode, wait, rows) in kinds(rows) {
        for figure in FIGURES {
            let values = rows.iter().filter_map(|row| row.figure(figure)).collect();
            let Some(distribution) = Distribution::of(values) else { continue };
            let (mode, wait) = (mode.to_owned(), wait.to_owned());
            summaries.push(Summary { mode, wait, figure, distribution });
        }
    }
    summaries
}

/// Compares the ends of a chain. Nothing to compare when there are fewer than two rows of a kind.
pub(super) fn trends(rows: &[Row]) -> Vec<Trend> {
    let mut trends = Vec::new();
    for (mode, wait, rows) in kinds(rows) {
        let ends = CHAIN_END_ROWS.min(rows.len() / 2);
        let (first, last) = (&rows[..ends], &rows[rows.len() - ends..]);
        for figure in FIGURES {
            let median = |rows: &[&Row]| {
                let values = rows.iter().filter_map(|row| row.figure(figure)).collect();
                Distribution::of(values).map(|distribution| distribution.p50)
            };
            let (Some(first_p50), Some(last_p50)) = (median(first), median(last)) else { continue };
            let (mode, wait) = (mode.to_owned(), wait.to_owned());
            trends.push(Trend { mode, wait, figure, rows: ends, first_p50, last_p50 });
        }
    }
    trends
}

/// The summaries for people.
pub(super) fn table(summaries: &[Summary]) -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("MODE", left),
        ("WAITS FOR", left),
        ("FIGURE", left),
        ("N", right),
        ("P50", right),
        ("P90", right),
        ("P99", right),
        ("MAX", right),
    ]);
    for Summary { mode, wait, figure, distribution } in summaries {
        let Distribution { n, p50, p90, p99, max } = *distribution;
        let [p50, p90, p99, max] = [p50, p90, p99, max].map(|value| shown(figure, value));
        let (mode, wait, figure) = (mode.clone(), wait.clone(), (*figure).to_owned());
        table.row([mode, wait, figure, n.to_string(), p50, p90, p99, max]);
    }
    table
}

/// The trends for people.
pub(super) fn trend_table(trends: &[Trend]) -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("MODE", left),
        ("WAITS FOR", left),
        ("FIGURE", left),
        ("ROWS", right),
        ("P50 OF THE FIRST", right),
        ("P50 OF THE LAST", right),
    ]);
    for trend in trends {
        table.row([
            trend.mode.clone(),
            trend.wait.clone(),
            trend.figure.to_owned(),
            trend.rows.to_string(),
            shown(trend.figure, trend.first_p50),
            shown(trend.figure, trend.last_p50),
        ]);
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
    if figure.ends_with("_per_s") {
        return format!("{value:.1} MiB/s");
    }
    if figure.ends_with("_ms") || figure.starts_with("phases_ms.") {
        return format!("{value:.2} ms");
    }
    format!("{value:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(iteration: u32, mode: &str, pause_ms: f64) -> Row {
        let mut row = Row::new(iteration, mode, "ready");
        row.set("pause_ms", Ok(pause_ms));
        row
    }

    #[test]
    fn rows_of_one_kind_are_summarised_together_and_unmeasured_figures_left_out() {
        let rows = [row(1, "live", 1.0), row(1, "full", 9.0), row(2, "live", 3.0)];
        let summaries = summaries(&rows);
        let found: Vec<_> = summaries
            .iter()
            .map(|s| (s.mode.as_str(), s.figure, s.distribution.n, s.distribution.max))
            .collect();
        assert_eq!(found, [("live", "pause_ms", 2, 3.0), ("full", "pause_ms", 1, 9.0)]);
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
        assert_eq!(shown("faults", 7.0), "7");
    }
}
