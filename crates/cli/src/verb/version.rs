//! `forkd version`: this program and the daemon.

use serde_json::json;

use crate::args::Global;
use crate::{connect, output};

/// Print the versions of this program and of the daemon; starts none
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd version --json")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global) -> anyhow::Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    let daemon = match connect::running_client(global).await? {
        Some(client) => Some(client.version().await?),
        None => None,
    };
    if global.json {
        return output::json(&json!({ "version": own, "daemon": daemon }));
    }
    let of_daemon = match daemon {
        Some(daemon) => {
            format!("{}, interface {}, {}", daemon.version, daemon.api, daemon.accelerator)
        }
        None => "none runs".to_owned(),
    };
    output::facts(&[("forkd", own.to_owned()), ("daemon", of_daemon)])
}
