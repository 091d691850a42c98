//! `forkd snapshots`: all snapshots.

use forkd_recipe::Key;

use crate::console::output::{self, Align, Table, or_dash};
use crate::daemon::connect;
use crate::options::Global;

/// List snapshots
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd snapshots --json")]
pub(crate) struct Options {
    /// Show the steps of builds too
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let mut snapshots = connect::client(global).await?.snapshots().await?;
    snapshots.retain(|snapshot| options.all || !Key::is_tag(&snapshot.tag));
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
            snapshot.status.to_string(),
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
