//! `forkd rm`: remove sandboxes.

use std::process::ExitCode;

use super::each;
use crate::daemon::connect;
use crate::options::Global;

/// Remove sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd rm sb-0123456789ab\n  forkd rm --all")]
pub(crate) struct Options {
    /// The sandboxes
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    sandboxes: Vec<String>,
    /// Remove all sandboxes
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let ids = if options.all {
        client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id).collect()
    } else {
        options.sandboxes
    };
    each::removed(global, ids, async |id| client.delete_sandbox(id).await).await
}
