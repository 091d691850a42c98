//! What was measured, and how it is printed: rows, and what they come to.

use serde_json::{Value, json};

use super::host::{Host, interrupted};
use super::row::{Row, Sheet};
use super::summary;
use crate::console::output;
use crate::console::report::{self, Hinted};
use crate::options::Global;

/// What was measured until it ended, however it ended.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) accelerator: String,
    pub(super) rows: Vec<Row>,
    pub(super) complete: bool,
}

/// How a measurement is shown.
pub(super) struct Presentation {
    pub(super) sheet: &'static Sheet,
    /// What heads the labels in tables.
    pub(super) heads: &'static [&'static str],
    /// What was asked for, for whoever reads the result.
    pub(super) settings: Value,
    /// Print a line of CSV for each row.
    pub(super) csv: bool,
    /// Compare the first rows with the last.
    pub(super) chain: bool,
}

/// Refuses options that no measurement takes.
pub(super) fn check(global: &Global, csv: bool) -> Result<(), Hinted> {
    if global.socket.is_some() || global.url.is_some() {
        return Err(Hinted::usage(
            "bench starts a daemon of its own",
            "leave out --socket and --url, and unset FORKD_SOCKET and FORKD_URL",
        ));
    }
    if global.json && csv {
        return Err(Hinted::usage("--csv and --json exclude each other", "give one of the two"));
    }
    Ok(())
}

/// Measures until it is done or interrupted, and prints what there is.
pub(super) async fn run(
    global: &Global,
    presentation: Presentation,
    measure: impl AsyncFnOnce(&mut Measured) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut measured = Measured::default();
    let outcome = tokio::select! {
        outcome = measure(&mut measured) => outcome,
        signal = interrupted() => signal.and_then(|()| Err(anyhow::anyhow!("interrupted"))),
    };
    // What was measured is worth having even when the rest was not.
    if outcome.is_ok() || !measured.rows.is_empty() {
        print(global, &presentation, &measured)?;
    }
    outcome
}

fn print(global: &Global, presentation: &Presentation, measured: &Measured) -> anyhow::Result<()> {
    let Presentation { sheet, heads, settings, csv, chain } = presentation;
    let rows = &measured.rows;
    if *csv {
        output::line(&sheet.csv_header())?;
        return rows.iter().try_for_each(|row| output::line(&row.to_csv()));
    }
    let summaries = summary::summaries(rows);
    let trends = if *chain { summary::trends(rows) } else { Vec::new() };
    if global.json {
        return output::json(&json!({
            "forkd": env!("CARGO_PKG_VERSION"),
            "accelerator": measured.accelerator,
            "host": Host::this(),
            "settings": settings,
            "complete": measured.complete,
            "rows": rows,
            "summary": summaries,
            "chain": trends,
        }));
    }
    summary::table(heads, &summaries).print("nothing was measured")?;
    if *chain {
        output::line("")?;
        summary::trend_table(heads, &trends).print("too few rows to compare")?;
    }
    for (note, count) in summary::notes(rows) {
        report::note(&format!("note: {} ({count} rows)", report::printable(&note)));
    }
    Ok(())
}
