//! `forkd pause`: stop sandboxes for a while.

use std::process::ExitCode;

use super::each;
use crate::options::Global;

/// Pause sandboxes; their programs stop until you resume them
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd pause sb-0123456789ab")]
pub(crate) struct Options {
    /// The sandboxes
    #[arg(required = true)]
    sandboxes: Vec<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    each::sandbox(global, options.sandboxes, async |client, id| client.pause(id).await).await
}
