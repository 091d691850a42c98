//! `forkd operations`: what takes long, and what took long.

use crate::console::output::{self, Align, Table, or_dash};
use crate::daemon::connect;
use crate::follow;
use crate::options::Global;

/// List operations that are running or have ended lately
///
/// An operation builds a template, takes a branch, compacts, merges, restores, or publishes (makes
/// a snapshot durable).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd operations\n  forkd operations --state running")]
pub(crate) struct Options {
    /// Only operations in this state: running, succeeded, failed or cancelled
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let operations = client.operations(options.state.as_deref()).await?;
    if global.json {
        return output::json(&operations);
    }
    let mut table = Table::new(&[
        ("OPERATION", Align::Left),
        ("KIND", Align::Left),
        ("STATE", Align::Left),
        ("STEP", Align::Left),
        ("SNAPSHOT", Align::Left),
        ("SANDBOX", Align::Left),
        ("AGE", Align::Right),
    ]);
    for operation in operations {
        let step = follow::step(&operation);
        table.row([
            operation.id,
            operation.kind,
            operation.state,
            step,
            or_dash(operation.snapshot_tag),
            or_dash(operation.sandbox_id),
            output::age(operation.created_at_unix),
        ]);
    }
    table.print("no operations")
}
