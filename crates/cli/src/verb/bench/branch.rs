//! `forkd bench branch`: what a branch costs, as seen from host and guest.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::daemon::OwnDaemon;
use super::measure::Measurement;
use super::options::Options;
use super::row::Row;
use super::summary;
use crate::console::output;
use crate::console::report::{self, Hinted};
use crate::daemon::paths::Surroundings;
use crate::options::Global;

/// What was measured until it ended, however it ended.
#[derive(Default)]
struct Measured {
    accelerator: String,
    rows: Vec<Row>,
    complete: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    options.check(global)?;
    let mut measured = Measured::default();
    let outcome = tokio::select! {
        outcome = measure(&options, &mut measured) => outcome,
        signal = interrupted() => signal.and_then(|()| Err(anyhow::anyhow!("interrupted"))),
    };
    // What was measured is worth having even when the rest was not.
    if outcome.is_ok() || !measured.rows.is_empty() {
        print(global, &options, &measured)?;
    }
    outcome
}

/// Resolves when we are told to end.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("watch for SIGHUP")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("watch for SIGINT"),
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// The daemon and its files end with this future, however it ends.
async fn measure(options: &Options, measured: &mut Measured) -> anyhow::Result<()> {
    let meter = match &options.meter {
        Some(path) => path.clone(),
        None => Surroundings::of_process()?.meter(|path| path.is_file()),
    };
    if !meter.is_file() {
        return Err(Hinted::new(
            format!("the program that measures in the guest is missing: `{}`", meter.display()),
            "build it with `make build`, or name it with --meter",
        )
        .into());
    }
    let progress = Progress::new(options.iterations);
    let daemon = OwnDaemon::start(options.store.as_deref(), options.hot.as_deref()).await?;
    measured.accelerator = daemon.client().version().await?.accelerator;
    let mut measurement = Measurement::prepare(daemon.client(), options, &meter).await?;
    for iteration in 1..=options.iterations {
        for mode in &options.mode {
            for wait in &options.wait {
                measured.rows.push(measurement.branch(iteration, *mode, *wait).await?);
            }
        }
        measured.rows.extend(measurement.floor(iteration).await?);
        progress.advance();
    }
    drop(progress);
    drop(measurement);
    daemon.end()?;
    measured.complete = true;
    Ok(())
}

fn print(global: &Global, options: &Options, measured: &Measured) -> anyhow::Result<()> {
    let rows = &measured.rows;
    if options.csv {
        output::line(&Row::csv_header())?;
        return rows.iter().try_for_each(|row| output::line(&row.to_csv()));
    }
    let summaries = summary::summaries(rows);
    let trends = if options.chain { summary::trends(rows) } else { Vec::new() };
    if global.json {
        return output::json(&json!({
            "forkd": env!("CARGO_PKG_VERSION"),
            "accelerator": measured.accelerator,
            "host": Host::this(),
            "settings": options.as_json(),
            "complete": measured.complete,
            "rows": rows,
            "summary": summaries,
            "chain": trends,
        }));
    }
    summary::table(&summaries).print("nothing was measured")?;
    if options.chain {
        output::line("")?;
        summary::trend_table(&trends).print("too few rows to compare")?;
    }
    for (note, count) in summary::notes(rows) {
        report::note(&format!("note: {} ({count} rows)", report::printable(&note)));
    }
    Ok(())
}

/// The machine that was measured.
#[derive(Debug, Serialize)]
struct Host {
    cpus: usize,
    cpu_model: Option<String>,
    memory_mib: Option<u64>,
    kernel: String,
}

impl Host {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        Self {
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            cpu_model: field(&read("/proc/cpuinfo"), "model name"),
            memory_mib: kib.map(|kib| kib / 1024),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// The first value of that name in a file of lines `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = pairs.filter(|(key, _)| key.trim() == name);
    values.next().map(|(_, value)| value.trim().to_owned())
}

/// A bar on a terminal, else nothing.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(iterations: u32) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(iterations.into());
        // Without the style the bar is merely plainer.
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} ({eta} left)") {
            bar.set_style(style);
        }
        bar.tick();
        Self(Some(bar))
    }

    fn advance(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_the_kernels_files_is_found_by_its_whole_name() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel\t: 7\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(text, "name"), None);
    }
}
