//! `forkd fork`: start sandboxes from a snapshot.

use forkd_api::CreateSandboxes;

use crate::args::Global;
use crate::{connect, output};

/// Start sandboxes from a snapshot, and print their ids
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd fork py -n 3")]
pub(crate) struct Options {
    /// The snapshot
    tag: String,
    /// How many: all of them, or none
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 1)]
    count: u32,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let request = CreateSandboxes::new(options.tag, options.count);
    let sandboxes = client.create_sandboxes(&request).await?;
    if global.json {
        return output::json(&sandboxes);
    }
    sandboxes.iter().try_for_each(|sandbox| output::line(&sandbox.id))
}
