//! `forkd rollback`: a sandbox as it was at a snapshot.

use crate::console::{output, progress};
use crate::daemon::connect;
use crate::options::Global;

/// Return a sandbox to the state of a snapshot
///
/// Memory, programs and disk become those of the snapshot; the id stays. You lose what the sandbox
/// has done since, unless another snapshot has it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd rollback sb-0123456789ab before-upgrade")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// The snapshot
    tag: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let work = client.rollback(&options.sandbox, &options.tag);
    let sandbox = progress::during("roll back", work).await?;
    if global.json {
        return output::json(&sandbox);
    }
    output::line(&sandbox.id)
}
