//! `test`: prepares everything, runs all tests tier by tier and says what ran.
//!
//! | tier | what | needs |
//! |---|---|---|
//! | pure | the crates' own tests and documentation examples | nothing |
//! | fuzz | a short search in each fuzz target | nothing |
//! | Python | the Python SDK's tests that need no daemon | Python |
//! | TypeScript | the TypeScript SDK's tests that need no daemon | Node, npm |
//! | kernel | test programs named `kernel_*` | userfaultfd with write protection |
//! | VM | the package `forkd-system-tests`, the guest agent's boot tests | QEMU, guest images |
//! | conformance | scenarios and documents with the SDKs | QEMU, guest images, Node, npm |
//! | KVM | some of them on KVM, in an emulated machine | QEMU, guest images |
//! | Debian 13 | the demonstration and the VM tier in Debian 13; only when it is named | root |
//!
//! Guarantees: a tier that could not run is reported with the reason, never counted as passed. A
//! tier with test programs of which no test ran has failed. With `--require-all` (continuous
//! integration) a tier that could not run has failed too. The tiers share one build.

mod debian13;
mod harness;
mod kvm;
mod libtest;
mod programs;
mod pytest;
mod sdk;
mod templates;
mod tier;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::node::{self, Node};
use crate::progress::say;
use crate::python::Python;
use crate::tidy;
use crate::workspace::Workspace;
use crate::{build, images, setup};

use self::programs::{Selection, TestProgram};
use self::tier::{Outcome, Tier};

/// Tiers that run one after the other; the lanes run side by side. The KVM tier comes last: its
/// machine has one processor, and so much is left then by the programs at the end of the VM tier.
const LANES: [&[Tier]; 2] = [
    &[Tier::Vm, Tier::Debian13],
    &[
        Tier::Pure,
        Tier::Kernel,
        Tier::Python,
        Tier::TypeScript,
        Tier::Fuzz,
        Tier::Conformance,
        Tier::Kvm,
    ],
];

/// Options of `test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run these tiers only; when none is named, all but `debian13`.
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    #[command(flatten)]
    selection: Selection,
    /// Fail when a tier cannot run on this machine.
    #[arg(long, env = "FORKD_TEST_REQUIRE_ALL")]
    require_all: bool,
}

/// What was done, and how long it took.
struct Timed<T> {
    done: T,
    time: Duration,
}

/// Runs the tests; the exit code tells whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    setup::run(workspace)?;
    setup::for_sdks(workspace)?;
    let chosen: Vec<Tier> = Tier::ALL
        .into_iter()
        .filter(|tier| match options.tiers.as_slice() {
            [] => tier.is_default(),
            named => named.contains(tier),
        })
        .collect();
    if chosen.contains(&Tier::Vm) {
        setup::for_images(workspace)?;
    }
    let (build, images) = prepare(workspace, &chosen)?;
    let selection = &options.selection;
    selection.check(&tier::names(&chosen, &build.done))?;
    let mut reports = run_lanes(workspace, &chosen, &build.done, selection)?;
    reports.sort_by_key(|(tier, _)| Tier::ALL.iter().position(|it| it == tier));
    say("");
    say(&row("tier", ["passed", "failed", "ignored"].map(str::to_owned), "time"));
    for (name, time) in [("build", build.time), ("images", images.time)] {
        say(&row(name, [(); 3].map(|()| "-".to_owned()), &minutes(time)));
    }
    let mut failed = false;
    for (tier, outcome) in &reports {
        failed |= outcome.done.is_failure(options.require_all);
        for line in summary(*tier, outcome) {
            say(&line);
        }
    }
    let verdict = if failed { "FAILED" } else { "all well" };
    say(&format!("{verdict} in {}", minutes(begun.elapsed())));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds the programs, and at the same time all that the tiers need besides: that waits for the
/// network and for single threads.
fn prepare(
    workspace: &Workspace,
    chosen: &[Tier],
) -> anyhow::Result<(Timed<Vec<TestProgram>>, Timed<()>)> {
    thread::scope(|scope| {
        let images = scope.spawn(|| timed(|| all_but_programs(workspace, chosen)));
        let metadata = tidy::metadata(workspace)?;
        let programs = timed(|| programs::build(workspace, &metadata));
        let images = images.join().map_err(|_| anyhow!("a thread died"))?;
        Ok((programs?, images?))
    })
}

fn all_but_programs(workspace: &Workspace, chosen: &[Tier]) -> anyhow::Result<()> {
    build::all_for_guests(workspace)?;
    let wants = |tiers: &[Tier]| tiers.iter().any(|tier| chosen.contains(tier));
    if chosen != [Tier::Debian13] {
        images::run(workspace, &images::Options::default())?;
    }
    if wants(&[Tier::Vm, Tier::Debian13]) {
        build::probe_shim(workspace)?;
    }
    if wants(&[Tier::Debian13]) && crate::debian13::obstacle().is_none() {
        crate::debian13::prepare(workspace)?;
    }
    if wants(&[Tier::Kvm]) {
        images::kvm_host(workspace)?;
    }
    if wants(&[Tier::Python, Tier::Conformance]) {
        Python::prepare(workspace)?;
    }
    if wants(&[Tier::TypeScript, Tier::Conformance]) && node::obstacle().is_none() {
        Node::prepare(workspace)?;
    }
    Ok(())
}

fn timed<T>(what: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Timed<T>> {
    let begun = Instant::now();
    let done = what()?;
    Ok(Timed { done, time: begun.elapsed() })
}

/// Makes the templates that the system tests share.
pub(crate) fn make_templates(workspace: &Workspace) -> anyhow::Result<()> {
    templates::make(workspace)
}

/// Runs the chosen tiers, those of different lanes side by side.
fn run_lanes(
    workspace: &Workspace,
    chosen: &[Tier],
    programs: &[TestProgram],
    selection: &Selection,
) -> anyhow::Result<Vec<(Tier, Timed<Outcome>)>> {
    let run = |lane: &'static [Tier]| {
        let tiers = lane.iter().filter(|tier| chosen.contains(tier));
        let outcomes = tiers.map(|tier| {
            let outcome = timed(|| tier::run(workspace, *tier, programs, selection))?;
            Ok((*tier, outcome))
        });
        outcomes.collect::<anyhow::Result<Vec<_>>>()
    };
    thread::scope(|scope| {
        let lanes = LANES.map(|lane| scope.spawn(move || run(lane)));
        let mut reports = Vec::new();
        for lane in lanes {
            reports.extend(lane.join().map_err(|_| anyhow!("a thread died"))??);
        }
        Ok(reports)
    })
}

/// A row of the table.
fn row(name: &str, [passed, failed, ignored]: [String; 3], time: &str) -> String {
    format!("{name:11} {passed:>7} {failed:>7} {ignored:>8} {time:>7}")
}

/// Minutes and seconds.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn summary(tier: Tier, outcome: &Timed<Outcome>) -> Vec<String> {
    let name = tier.name();
    match &outcome.done {
        Outcome::NotRun(reason) => vec![format!("{name:11} not run: {reason}")],
        Outcome::Absent => vec![format!("{name:11} has no tests")],
        Outcome::Ran { counts, error, log } => {
            let numbers = [counts.passed, counts.failed, counts.ignored];
            let numbers = numbers.map(|number| number.to_string());
            let mut lines = vec![row(name, numbers, &minutes(outcome.time))];
            lines.extend(counts.failures.iter().map(|test| format!("    failed: {test}")));
            // Again, at the end: where a log is cut, its end is what is left.
            lines.extend(counts.complaints.iter().map(|line| format!("        {line}")));
            lines.extend(counts.ignored_tests.iter().map(|test| format!("    ignored: {test}")));
            if let Some(error) = error {
                lines.push(format!("    {error}; output: {}", log.display()));
            }
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use super::libtest::Counts;
    use super::*;

    fn ran(counts: Counts, error: Option<&str>) -> Outcome {
        Outcome::Ran { counts, error: error.map(str::to_owned), log: "x.log".into() }
    }

    fn after(seconds: u64, done: Outcome) -> Timed<Outcome> {
        Timed { done, time: Duration::from_secs(seconds) }
    }

    #[test]
    fn every_tier_is_in_one_lane() {
        for tier in Tier::ALL {
            let lanes = LANES.concat();
            assert_eq!(lanes.iter().filter(|it| **it == tier).count(), 1, "{tier:?}");
        }
    }

    #[test]
    fn a_row_says_how_long_its_tier_took() {
        let counts = Counts { passed: 584, ignored: 4, ..Counts::default() };
        let lines = summary(Tier::Pure, &after(83, ran(counts, None)));
        assert_eq!(lines, ["pure            584       0        4    1:23"]);
    }

    #[test]
    fn a_tier_that_could_not_run_says_why_and_never_shows_a_count() {
        let lines = summary(Tier::Kernel, &after(1, Outcome::NotRun("no userfaultfd".to_owned())));
        assert_eq!(lines, ["kernel      not run: no userfaultfd"]);
    }

    #[test]
    fn failures_are_listed_with_where_to_look() {
        let (failures, complaints) = (vec!["a::b".to_owned()], vec!["no space".to_owned()]);
        let counts = Counts { failed: 1, failures, complaints, ..Counts::default() };
        let text = summary(Tier::Pure, &after(1, ran(counts, Some("tests failed")))).join("\n");
        let wanted = ["failed: a::b", "no space", "x.log"];
        assert!(wanted.iter().all(|words| text.contains(words)), "{text}");
    }

    #[test]
    fn what_counts_as_failure() {
        let passed = Counts { passed: 1, ..Counts::default() };
        assert!(!ran(passed, None).is_failure(true));
        assert!(ran(Counts::default(), Some("no test ran")).is_failure(false));
        assert!(!Outcome::NotRun(String::new()).is_failure(false));
        assert!(Outcome::NotRun(String::new()).is_failure(true));
        assert!(!Outcome::Absent.is_failure(false));
    }
}
