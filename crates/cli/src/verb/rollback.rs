//! `forkd rollback`: put a sandbox back to what it was at a snapshot.

use crate::args::Global;
use crate::{connect, output, progress};

/// Put a sandbox back to what it was at a snapshot
///
/// Its memory, its programs and its disk become those of the snapshot; its id stays. What it has
/// done since is lost unless a snapshot holds it.
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
