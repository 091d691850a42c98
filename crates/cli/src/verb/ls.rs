//! `forkd ls`: all sandboxes.

use crate::args::Global;
use crate::connect;
use crate::output::{self, Align, Table, or_dash};

/// List all sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd ls")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global) -> anyhow::Result<()> {
    let sandboxes = connect::client(global).await?.sandboxes().await?;
    if global.json {
        return output::json(&sandboxes);
    }
    let mut table = Table::new(&[
        ("SANDBOX", Align::Left),
        ("STATE", Align::Left),
        ("SNAPSHOT", Align::Left),
        ("BRANCHES", Align::Right),
        ("PID", Align::Right),
        ("AGE", Align::Right),
    ]);
    for sandbox in sandboxes {
        table.row([
            sandbox.id,
            sandbox.state,
            sandbox.snapshot_tag,
            sandbox.branch_count.to_string(),
            or_dash(sandbox.pid.map(|pid| pid.to_string())),
            output::age(sandbox.created_at_unix),
        ]);
    }
    table.print("no sandboxes; start one with `forkd fork TAG`")
}
