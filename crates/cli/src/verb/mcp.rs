//! `forkd mcp`: sandboxes as tools for language models.

use anyhow::Context as _;

use crate::daemon::connect;
use crate::options::Global;

/// Serve the Model Context Protocol on standard input and output
///
/// Programs that give tools to a language model start this command. Its tools create sandboxes, run
/// code and commands in them, read and write files, branch, fork, roll back, list and delete.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example of an entry in such a program's configuration:\n  \
    {\"mcpServers\": {\"forkd\": {\"command\": \"forkd\", \"args\": [\"mcp\"]}}}")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global, _: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    forkd_mcp::serve(client).await.context("serve the Model Context Protocol")
}
