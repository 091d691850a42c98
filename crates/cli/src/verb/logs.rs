//! `forkd logs`: what a guest wrote to its console.

use std::io::IsTerminal as _;

use serde_json::json;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::options::Global;

/// Print the console output of a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd logs sb-0123456789ab | tail")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let log = connect::client(global).await?.logs(&options.sandbox).await?;
    if global.json {
        return output::json(&json!({ "log": String::from_utf8_lossy(&log) }));
    }
    if std::io::stdout().is_terminal() {
        // A guest must not be able to steer the terminal.
        let text = String::from_utf8_lossy(&log).replace("\r\n", "\n");
        return output::bytes(report::printable(&text).as_bytes());
    }
    output::bytes(&log)
}
