//! `forkd branch`: branch a sandbox while it runs.

use std::process::ExitCode;

use forkd_api::{BranchAnswer, BranchRequest, Child, Snapshot};
use forkd_types::BranchMode;

use crate::console::{output, progress, report};
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::{Global, Network, branch_mode};

/// Take a snapshot of a running sandbox and start children from it
///
/// The sandbox pauses for about a millisecond and then keeps running. Prints the snapshot's tag,
/// then the children's ids.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd branch sb-0123456789ab -n 3\n  \
    forkd branch sb-0123456789ab -n 3 --no-internet\n  \
    forkd branch sb-0123456789ab --tag before-upgrade --mode diff")]
pub(crate) struct Options {
    /// The sandbox to branch
    sandbox: String,
    /// Name the snapshot; without it, forkd chooses a name
    #[arg(long)]
    tag: Option<String>,
    /// Start this many children
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 0)]
    count: u32,
    /// Which pages to capture, and when
    #[arg(long, default_value_t, value_parser = branch_mode())]
    mode: BranchMode,
    /// Also report what a diff would have cost, in any mode
    #[arg(long)]
    measure_diff: bool,
    /// Return as soon as the sandbox runs again; the snapshot is still being written then
    #[arg(long, conflicts_with = "count")]
    no_wait: bool,
    /// Keep the snapshot, and what is branched from it, on this host: neither is pushed or exported
    #[arg(long)]
    private: bool,
    #[command(flatten)]
    network: Network,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let request = BranchRequest {
        tag: options.tag,
        mode: Some(options.mode.into()),
        measure_diff: options.measure_diff.then_some(true),
        wait: !options.no_wait,
        n: options.count,
        network: options.network.policy(),
        private: options.private,
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
}
