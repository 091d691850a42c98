//! `forkd logs`: what a guest wrote to its console.

use std::io::IsTerminal as _;

use serde_json::json;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::options::Global;

/// Print the end of the console output of a sandbox: the last MiB
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd logs sb-0123456789ab | tail")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let log = connect::client(global).await?.logs(&options.sandbox).await?;
    if global.json {
        let text = String::from_utf8_lossy(&log.bytes);
        return output::json(&json!({ "log": text, "missing_bytes": log.missing_bytes }));
    }
    if log.missing_bytes > 0 {
        report::note(&format!(
            "the first {} bytes of the console are missing; forkd keeps the last MiB",
            log.missing_bytes
        ));
    }
    if std::io::stdout().is_terminal() {
        // A guest must not be able to steer the terminal.
        let text = String::from_utf8_lossy(&log.bytes).replace("\r\n", "\n");
        return output::bytes(report::printable(&text).as_bytes());
    }
    output::bytes(&log.bytes)
}
