//! `forkd images`: what templates can be built from.

use crate::console::output;
use crate::console::output::{Align, Table};
use crate::daemon::connect;
use crate::options::Global;

/// List the images that templates are built from
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd images")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global, _: Options) -> anyhow::Result<()> {
    let images = connect::client(global).await?.images().await?;
    if global.json {
        return output::json(&images);
    }
    let mut table = Table::new(&[("IMAGE", Align::Left), ("DESCRIPTION", Align::Left)]);
    for image in images {
        table.row([image.name, image.description]);
    }
    table.print("no images; `forkd doctor` says where they should be")
}
