//! `forkd resume`: the end of a pause.

use std::process::ExitCode;

use super::each;
use crate::options::Global;

/// Resume paused sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd resume sb-0123456789ab")]
pub(crate) struct Options {
    /// The sandboxes
    #[arg(required = true)]
    sandboxes: Vec<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    each::sandbox(global, options.sandboxes, async |client, id| client.resume(id).await).await
}
