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
//!
//! Guarantees: a tier that could not run is reported with the reason, never counted as passed. A
//! tier with test programs of which no test ran has failed. With `--require-all` (continuous
//! integration) a tier that could not run has failed too.

mod harness;
mod kvm;
mod libtest;
mod pytest;
mod sdk;
mod tier;

use std::process::ExitCode;
use std::time::Instant;

use crate::progress::say;
use crate::tidy;
use crate::workspace::Workspace;
use crate::{build, images, setup};

use self::tier::{Outcome, Tier};

/// Options of `test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run these tiers only.
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    /// Fail when a tier cannot run on this machine.
    #[arg(long, env = "FORKD_TEST_REQUIRE_ALL")]
    require_all: bool,
}

/// Runs the tests; the exit code tells whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    setup::run(workspace)?;
    setup::for_sdks(workspace)?;
    build::run(workspace)?;
    images::run(workspace, &images::Options::default())?;
    let metadata = tidy::metadata(workspace)?;
    let mut reports = Vec::new();
    for tier in Tier::ALL {
        if options.tiers.is_empty() || options.tiers.contains(&tier) {
            reports.push((tier, tier::run(workspace, tier, &metadata)?));
        }
    }
    say("");
    say(&format!("{:11} {:>7} {:>7} {:>8}", "tier", "passed", "failed", "ignored"));
    let mut failed = false;
    for (tier, outcome) in &reports {
        failed |= outcome.is_failure(options.require_all);
        for line in summary(*tier, outcome) {
            say(&line);
        }
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    say(&format!("{} in {minutes:.1} min", if failed { "FAILED" } else { "all well" }));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn summary(tier: Tier, outcome: &Outcome) -> Vec<String> {
    let name = tier.name();
    match outcome {
        Outcome::NotRun(reason) => vec![format!("{name:11} not run: {reason}")],
        Outcome::Absent => vec![format!("{name:11} has no tests")],
        Outcome::Ran { counts, error, log } => {
            let mut lines = vec![format!(
                "{name:11} {:>7} {:>7} {:>8}",
                counts.passed, counts.failed, counts.ignored
            )];
            lines.extend(counts.failures.iter().map(|test| format!("    failed: {test}")));
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

    #[test]
    fn a_tier_that_could_not_run_says_why_and_never_shows_a_count() {
        let lines = summary(Tier::Kernel, &Outcome::NotRun("no userfaultfd".to_owned()));
        assert_eq!(lines, ["kernel      not run: no userfaultfd"]);
    }

    #[test]
    fn failures_are_listed_with_where_to_look() {
        let counts = Counts { failed: 1, failures: vec!["a::b".to_owned()], ..Counts::default() };
        let text = summary(Tier::Pure, &ran(counts, Some("tests failed"))).join("\n");
        assert!(text.contains("failed: a::b") && text.contains("x.log"), "{text}");
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
