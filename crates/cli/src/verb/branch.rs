//! `forkd branch`: branch a sandbox while it runs.

use std::process::ExitCode;

use clap::ValueEnum;
use forkd_api::{BranchAnswer, BranchRequest, Child, Snapshot};
use forkd_types::BranchMode;

use crate::args::Global;
use crate::exit::Exit;
use crate::{connect, output, progress, report};

/// Take a snapshot of a running sandbox and start children from it
///
/// The source pauses for a moment and goes on. Prints the snapshot's tag and then the children's
/// ids.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd branch sb-0123456789ab -n 3\n  \
    forkd branch sb-0123456789ab --tag before-upgrade --mode diff")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// Name of the snapshot; chosen for you by default
    #[arg(long)]
    tag: Option<String>,
    /// Children to start at once
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 0)]
    count: u32,
    /// Which pages are captured, and when
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// Tell what a diff would have cost, whatever the mode
    #[arg(long)]
    measure_diff: bool,
    /// Return as soon as the source runs again, while the snapshot is still being written
    #[arg(long, conflicts_with = "count")]
    no_wait: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Changed pages, while the guest runs
    #[default]
    Live,
    /// Changed pages, while the guest is paused
    Diff,
    /// All pages, while the guest is paused
    Full,
}

impl From<Mode> for BranchMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Live => Self::Live,
            Mode::Diff => Self::Diff,
            Mode::Full => Self::Full,
        }
    }
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let request = BranchRequest {
        tag: options.tag,
        mode: Some(BranchMode::from(options.mode).into()),
        measure_diff: options.measure_diff.then_some(true),
        wait: !options.no_wait,
        n: options.count,
        ..BranchRequest::default()
    };
    let work = client.branch(&options.sandbox, &request);
    let answer = progress::during("branch", work).await?;
    let failed = answer.children.iter().filter(|child| matches!(child, Child::Error(_))).count();
    if global.json {
        output::json(&answer)?;
    } else {
        print(&answer)?;
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Error }.into())
}

fn print(answer: &BranchAnswer) -> anyhow::Result<()> {
    report::remark(&summary(&answer.snapshot));
    output::line(&answer.snapshot.tag)?;
    for child in &answer.children {
        match child {
            Child::Sandbox(sandbox) => output::line(&sandbox.id)?,
            Child::Error(error) => {
                let text = report::printable(&error.error);
                report::note(&format!("error: a child did not start: {text}"));
            }
        }
    }
    Ok(())
}

fn summary(snapshot: &Snapshot) -> String {
    let figures = [
        ("paused", snapshot.pause_ms.map(output::milliseconds)),
        ("ready after", snapshot.ready_ms.map(output::milliseconds)),
        ("dirty", snapshot.dirty_bytes.map(output::size)),
        ("stored", snapshot.stored_bytes.map(output::size)),
        ("diff would have paused", snapshot.diff_ms.map(output::milliseconds)),
        ("diff would have stored", snapshot.diff_physical_bytes.map(output::size)),
    ];
    let known = figures.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    let known: Vec<String> = std::iter::once(snapshot.status.to_string()).chain(known).collect();
    known.join(", ")
}

#[cfg(test)]
mod tests {
    use forkd_types::SnapshotStatus;

    use super::*;

    #[test]
    fn the_summary_leaves_out_what_is_not_known() {
        let snapshot = Snapshot {
            status: SnapshotStatus::Writing.into(),
            pause_ms: Some(2.5),
            dirty_bytes: Some(2 << 20),
            ..Snapshot::default()
        };
        assert_eq!(summary(&snapshot), "writing, paused 2.50 ms, dirty 2.0 MiB");
    }

    #[test]
    fn modes_have_the_names_of_the_interface() {
        for mode in Mode::value_variants() {
            let word = mode.to_possible_value().unwrap();
            assert_eq!(BranchMode::from(*mode).name(), word.get_name());
        }
        assert_eq!(BranchMode::from(Mode::default()), BranchMode::default());
    }
}
