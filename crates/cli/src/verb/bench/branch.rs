//! `forkd bench branch`: what a branch costs, as seen from host and guest.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use clap::ValueEnum;
use forkd_types::BranchMode;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::daemon::OwnDaemon;
use super::guest::Writer;
use super::measure::Measurement;
use super::row::Row;
use super::summary;
use crate::args::Global;
use crate::output;
use crate::paths::Surroundings;
use crate::report::{self, Hinted};

/// What the guest itself needs besides the areas that are written, MiB.
const GUEST_OWN_MIB: u64 = 64;

/// Measure branches of one source: pause, phases, stalls in the guest, and what is stored
///
/// Starts a daemon of its own on directories of its own, and removes all of it at the end. Each
/// iteration takes a branch of each mode and a floor: the same measurement without a branch. See
/// bench/README.md for what each figure means. FORKD_IMAGE_DIR, FORKD_ACCEL, FORKD_QEMU and
/// FORKD_SHIM have the meaning that they have for `forkd serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd bench branch\n  \
    forkd bench branch --mode live,diff,full --dirty-mib 100 --iterations 20 --csv > rows.csv\n  \
    forkd bench branch --write-load max --write-area-mib 256\n  \
    forkd bench branch --chain --iterations 100 --wait ready")]
pub(crate) struct Options {
    /// The source's image
    #[arg(long, default_value = "python")]
    pub(super) image: String,
    /// The source's RAM in MiB
    #[arg(long, value_name = "N", default_value_t = 1536)]
    pub(super) mem_size_mib: u64,
    /// The source's virtual CPUs; one of them is the stall meter's
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) vcpus: u32,
    /// Modes, taken in turn: `live`, `diff`, `full`
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "live")]
    mode: Vec<BranchMode>,
    /// What the request waits for, taken in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ready,resumed")]
    wait: Vec<WaitFor>,
    /// How often each mode is measured
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// MiB of pages that are written anew before each branch
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) dirty_mib: u64,
    /// What a program in the guest writes all the time: `none`, `max` or MiB per second
    #[arg(long, value_name = "LOAD", default_value = "none")]
    pub(super) write_load: WriteLoad,
    /// MiB that this program writes to, over and over
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) write_area_mib: u64,
    /// How much of a page it writes at a time; with `word` its throughput counts whole pages
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Touch::Page)]
    pub(super) write_touch: Touch,
    /// In which order it writes the pages
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Order::Sequential)]
    pub(super) write_order: Order,
    /// Leave out the stall meter, which keeps a CPU of the host busy, and the floor with it
    #[arg(long)]
    pub(super) no_gap: bool,
    /// Keep all snapshots, and compare the first branches with the last
    #[arg(long)]
    pub(super) chain: bool,
    /// Where durable files are while it runs, below this directory
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Where hot layers are while it runs, below this directory on tmpfs
    #[arg(long, value_name = "DIR")]
    hot: Option<PathBuf>,
    /// The program that measures in the guest; by default the one that came with forkd
    #[arg(long, env = "FORKD_METER", value_name = "PATH", hide_env_values = true)]
    meter: Option<PathBuf>,
    /// Print a line of CSV for each branch
    #[arg(long)]
    csv: bool,
}

/// What a branch request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WaitFor {
    /// The usable snapshot
    Ready,
    /// The source that runs again
    Resumed,
}

impl WaitFor {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Resumed => "resumed",
        }
    }
}

/// How much of a page the writer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Touch {
    /// One word
    Word,
    /// All of it
    Page,
}

/// Which page the writer writes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Order {
    /// The one behind the last
    Sequential,
    /// Any
    Random,
}

/// How much a program in the guest writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteLoad {
    None,
    Max,
    MibPerSecond(u32),
}

impl WriteLoad {
    /// As the meter takes it; none when nothing is written.
    pub(super) fn rate(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Max => Some("max".to_owned()),
            Self::MibPerSecond(rate) => Some(rate.to_string()),
        }
    }
}

impl Options {
    /// What the meter is told to write, if anything is written.
    pub(super) fn writer(&self) -> Option<Writer> {
        let touch = match self.write_touch {
            Touch::Word => "word",
            Touch::Page => "page",
        };
        let order = match self.write_order {
            Order::Sequential => "sequential",
            Order::Random => "random",
        };
        let rate = self.write_load.rate()?;
        Some(Writer { mib: self.write_area_mib, rate, touch, order })
    }
}

impl FromStr for WriteLoad {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("none", _) => Ok(Self::None),
            ("max", _) => Ok(Self::Max),
            (_, Ok(rate)) if rate > 0 => Ok(Self::MibPerSecond(rate)),
            _ => Err("use `none`, `max` or MiB per second"),
        }
    }
}

/// What was measured until it ended, however it ended.
#[derive(Default)]
struct Measured {
    accelerator: String,
    rows: Vec<Row>,
    complete: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    check(global, &options)?;
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

fn check(global: &Global, options: &Options) -> Result<(), Hinted> {
    if global.socket.is_some() || global.url.is_some() {
        return Err(Hinted::usage(
            "bench starts a daemon of its own",
            "leave out --socket and --url, and unset FORKD_SOCKET and FORKD_URL",
        ));
    }
    if global.json && options.csv {
        return Err(Hinted::usage("--csv excludes --json", "give one of the two"));
    }
    if options.vcpus < 2 && !options.no_gap {
        let text = "the stall meter takes a virtual CPU for itself, so the guest needs two";
        return Err(Hinted::usage(text, "give --vcpus 2 or more, or --no-gap"));
    }
    let writer = if options.write_load == WriteLoad::None { 0 } else { options.write_area_mib };
    let needed = options.dirty_mib.saturating_add(writer).saturating_add(GUEST_OWN_MIB);
    if needed > options.mem_size_mib {
        let text = format!("a guest of {} MiB cannot hold this load", options.mem_size_mib);
        return Err(Hinted::usage(text, format!("give --mem-size-mib {needed} or more")));
    }
    Ok(())
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
            "settings": settings(options),
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

fn settings(options: &Options) -> serde_json::Value {
    json!({
        "image": options.image,
        "mem_size_mib": options.mem_size_mib,
        "vcpus": options.vcpus,
        "modes": options.mode,
        "wait": options.wait.iter().map(|wait| wait.name()).collect::<Vec<_>>(),
        "iterations": options.iterations,
        "dirty_mib": options.dirty_mib,
        "writer": options.writer(),
        "chain": options.chain,
        "no_gap": options.no_gap,
    })
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
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        options: Options,
    }

    fn checked(text: &str) -> Result<Options, String> {
        let words = std::iter::once("bench").chain(text.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        check(&line.global, &line.options).map_err(|error| error.to_string())?;
        Ok(line.options)
    }

    #[test]
    fn several_modes_are_taken_in_the_order_given() {
        let options = checked("--mode live,diff,full --wait resumed").unwrap();
        assert_eq!(options.mode, [BranchMode::Live, BranchMode::Diff, BranchMode::Full]);
        assert_eq!(options.wait, [WaitFor::Resumed]);
        let default = checked("").unwrap();
        assert_eq!(default.mode, [BranchMode::Live]);
        assert_eq!(default.wait, [WaitFor::Ready, WaitFor::Resumed]);
        assert_eq!(default.write_load, WriteLoad::None);
    }

    #[test]
    fn a_write_load_is_a_word_or_a_rate() {
        assert_eq!("max".parse(), Ok(WriteLoad::Max));
        assert_eq!("100".parse(), Ok(WriteLoad::MibPerSecond(100)));
        for wrong in ["0", "-1", "fast", "", "1.5"] {
            assert!(wrong.parse::<WriteLoad>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused_before_anything_starts() {
        for (text, word) in [
            ("--vcpus 1", "virtual CPU"),
            ("--mem-size-mib 300 --dirty-mib 250", "300 MiB"),
            ("--mem-size-mib 300 --write-load max --write-area-mib 250", "300 MiB"),
            ("--socket /x", "daemon of its own"),
            ("--json --csv", "excludes"),
            ("--iterations 0", "iterations"),
            ("--mode fast", "fast"),
        ] {
            let problem = checked(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
        }
        assert!(checked("--mem-size-mib 300 --write-area-mib 250").is_ok(), "nobody writes");
        assert!(checked("--vcpus 1 --no-gap").is_ok(), "there is no stall meter");
    }

    #[test]
    fn a_field_of_the_kernels_files_is_found_by_its_whole_name() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel\t: 7\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(text, "name"), None);
    }
}
