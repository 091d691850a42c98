//! `forkd version`: this program and the daemon.

use serde_json::json;

use crate::console::output;
use crate::daemon::connect;
use crate::options::Global;

/// Print the versions of forkd and of the daemon, if it is running
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd version --json")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global, _: Options) -> anyhow::Result<()> {
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
            let boundary = if daemon.security_boundary { "a" } else { "no" };
            format!(
                "{}, interface {}, {} ({boundary} security boundary), isolation {}",
                daemon.version, daemon.api, daemon.accelerator, daemon.isolation
            )
        }
        None => "not running".to_owned(),
    };
    output::facts(&[("forkd", own.to_owned()), ("daemon", of_daemon)])
}
