//! `forkd snapshots`: all snapshots.

use crate::console::output::{self, Align, Table, or_dash};
use crate::daemon::connect;
use crate::options::Global;

/// List snapshots
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd snapshots --json")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global, _: Options) -> anyhow::Result<()> {
    let snapshots = connect::client(global).await?.snapshots().await?;
    if global.json {
        return output::json(&snapshots);
    }
    let mut table = Table::new(&[
        ("TAG", Align::Left),
        ("STATUS", Align::Left),
        ("DURABLE", Align::Left),
        ("PARENT", Align::Left),
        ("IMAGE", Align::Left),
        ("STORED", Align::Right),
        ("PAUSE", Align::Right),
        ("AGE", Align::Right),
    ]);
    for snapshot in snapshots {
        table.row([
            snapshot.tag,
            snapshot.status,
            if snapshot.durable { "yes" } else { "no" }.to_owned(),
            or_dash(snapshot.parent_tag),
            snapshot.image,
            or_dash(snapshot.stored_bytes.map(output::size)),
            or_dash(snapshot.pause_ms.map(output::milliseconds)),
            output::age(snapshot.created_at_unix),
        ]);
    }
    table.print("no snapshots; make one with `forkd template build IMAGE --tag TAG`")
}
