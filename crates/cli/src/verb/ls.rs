//! `forkd ls`: all sandboxes.

use crate::console::output::{self, Align, Table, or_dash};
use crate::daemon::connect;
use crate::options::{Global, key_value};

/// List sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd ls\n  forkd ls --metadata user=ann")]
pub(crate) struct Options {
    /// Only sandboxes with this label, such as user=ann; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let sandboxes = client.sandboxes_with(&options.metadata).await?;
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
