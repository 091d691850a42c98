//! `fuzz`: looks for inputs that break what must hold of the parsers of foreign bytes. The checks
//! are in `fuzz/`; the search is libFuzzer's.
//!
//! Only the repository's own crates are instrumented, so the others are not built once more, and
//! the compiler may be a stable one. `cargo fuzz` instruments all and adds sanitizers.
//!
//! Cargo builds a crate once more when a build wants other features of it. So these builds name the
//! whole workspace with what its tests need, as the build of the tests does.
//!
//! Guarantees: a target that found its way by nothing (not instrumented, nothing executed) has
//! failed. What is found stays in `build/fuzz/<target>/` and fails every later search.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::command::{run_logged, run_visible};
use crate::progress::{Step, say};
use crate::workspace::Workspace;

/// There are no examples; but whoever asks for them asks for the features that tests need.
const BUILD: [&str; 4] = ["build", "--locked", "--workspace", "--examples"];
/// The program that writes the seeds.
const SEEDS: &str = "fuzz-seeds";
/// The feature with libFuzzer.
const ENGINE: &str = "forkd-fuzz/engine";
/// Searches at the same time.
const AT_ONCE: usize = 2;
/// How long one input may take.
const INPUT_DEADLINE_S: u64 = 10;
/// The largest input.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// What a search may hold.
const MEMORY_MIB: u64 = 1024;
/// Seconds for each target when nothing else is asked for.
const SECONDS_DEFAULT: u64 = 60;

/// Options of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Search in these targets only.
    targets: Vec<String>,
    #[command(flatten)]
    effort: Effort,
}

/// How to search in each target.
#[derive(clap::Args, Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// How long to search in each.
    #[arg(long, default_value_t = SECONDS_DEFAULT)]
    pub(crate) seconds: u64,
    /// Where the search begins; with the same programs it tries the same inputs in the same order.
    /// Another one each time if absent.
    #[arg(long)]
    pub(crate) seed: Option<u32>,
}

/// How a search went.
pub(crate) struct Report {
    pub(crate) target: String,
    /// What was executed, or what was found.
    pub(crate) outcome: Result<u64, String>,
}

/// Searches; the exit code tells whether nothing was found.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut found = false;
    for report in search(workspace, &options.targets, options.effort, None)? {
        match &report.outcome {
            Ok(executed) => say(&format!("{:16} {executed:>9} inputs, all well", report.target)),
            Err(what) => say(&format!("{:16} {what}", report.target)),
        }
        found |= report.outcome.is_err();
    }
    Ok(if found { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Searches in the targets of these names, or in all. What the build says goes to `log`, if there
/// is one.
pub(crate) fn search(
    workspace: &Workspace,
    only: &[String],
    effort: Effort,
    log: Option<&Path>,
) -> anyhow::Result<Vec<Report>> {
    let folder = workspace.root.join("build/fuzz");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let all = targets(workspace)?;
    if let Some(name) = only.iter().find(|name| !all.contains(name)) {
        bail!("there is no target {name:?}; there are {}", all.join(", "));
    }
    let chosen: Vec<_> =
        all.into_iter().filter(|name| only.is_empty() || only.contains(name)).collect();
    build(workspace, &folder, &chosen, log)?;
    let mut reports = Vec::new();
    for names in chosen.chunks(AT_ONCE) {
        let searches: Vec<_> = names
            .iter()
            .map(|name| Search::start(workspace, &folder, name, effort))
            .collect::<anyhow::Result<_>>()?;
        for search in searches {
            reports.push(search.end()?);
        }
    }
    Ok(reports)
}

fn build(
    workspace: &Workspace,
    folder: &Path,
    chosen: &[String],
    log: Option<&Path>,
) -> anyhow::Result<()> {
    let mut seeds = workspace.cargo();
    run_visible(seeds.args(BUILD).args(["--quiet", "--bin", SEEDS]))?;
    run_visible(Command::new(workspace.tested().join(SEEDS)).arg(folder))
        .context("the seeds could not be written")?;
    let mut cargo = workspace.cargo();
    cargo.args(BUILD).args(["--features", ENGINE]);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join("fuzz/instrument.sh"));
    for name in chosen {
        cargo.args(["--bin", name]);
    }
    let built = match log {
        Some(log) => run_logged(&Step::start("build the fuzz targets"), cargo, log),
        None => run_visible(&mut cargo),
    };
    built.context("the fuzz targets could not be built")
}

/// The names of the targets, which are those of the programs.
fn targets(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let folder = workspace.root.join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// A search under way.
struct Search {
    target: String,
    engine: Child,
    log: PathBuf,
}

impl Search {
    fn start(
        workspace: &Workspace,
        folder: &Path,
        target: &str,
        effort: Effort,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(target);
        let (corpus, found) = (folder.join("corpus"), folder.join("found"));
        for path in [&corpus, &found] {
            fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        }
        let log = folder.join("log");
        let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let engine = Command::new(workspace.tested().join(target))
            .args([&corpus, &folder.join("seeds"), &found])
            .arg(format!("-artifact_prefix={}/", found.display()))
            .arg(format!("-max_total_time={}", effort.seconds))
            // libFuzzer takes 0 for a seed of its own choice.
            .arg(format!("-seed={}", effort.seed.unwrap_or(0)))
            .arg(format!("-timeout={INPUT_DEADLINE_S}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg("-print_final_stats=1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start the search in {target}"))?;
        Ok(Self { target: target.to_owned(), engine, log })
    }

    fn end(mut self) -> anyhow::Result<Report> {
        let succeeded = self.engine.wait()?.success();
        let words = fs::read(&self.log).with_context(|| format!("read {}", self.log.display()))?;
        let outcome = outcome(succeeded, &String::from_utf8_lossy(&words));
        let outcome = outcome.map_err(|what| format!("{what}; see {}", self.log.display()));
        Ok(Report { target: self.target, outcome })
    }
}

/// What libFuzzer's words mean: how many inputs were executed, or what is wrong.
fn outcome(succeeded: bool, words: &str) -> Result<u64, String> {
    if !succeeded {
        let said = words.lines().find(|line| line.contains("panicked at") || is_error(line));
        return Err(format!("an input breaks it: {}", said.unwrap_or("it ended")));
    }
    if !words.contains("inline 8-bit counters)") {
        return Err("the search was blind: the program is not instrumented".to_owned());
    }
    let executed = words
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse().ok());
    executed.filter(|number| *number > 0).ok_or_else(|| "nothing was executed".to_owned())
}

fn is_error(line: &str) -> bool {
    line.contains("ERROR: libFuzzer")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEING: &str = "INFO: Loaded 1 modules   (811 inline 8-bit counters): 811\n";

    #[test]
    fn a_search_that_found_nothing_says_how_much_it_executed() {
        let words = format!("{SEEING}stat::number_of_executed_units: 1234\n");
        assert_eq!(outcome(true, &words), Ok(1234));
    }

    #[test]
    fn a_blind_or_idle_search_has_failed() {
        assert!(
            outcome(true, "stat::number_of_executed_units: 9\n").unwrap_err().contains("blind")
        );
        let idle = format!("{SEEING}stat::number_of_executed_units: 0\n");
        assert!(outcome(true, &idle).is_err());
    }

    #[test]
    fn what_was_found_is_told() {
        let words = format!("{SEEING}thread '<unnamed>' panicked at a.rs:3:1:\n");
        assert!(outcome(false, &words).unwrap_err().contains("a.rs:3:1"));
        let slow = "==1== ERROR: libFuzzer: timeout after 10 seconds\n";
        assert!(outcome(false, slow).unwrap_err().contains("timeout"));
    }
}
