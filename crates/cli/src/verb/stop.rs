//! `forkd stop`: end the daemon.

use forkd_client::Client;
use serde_json::json;

use crate::console::output;
use crate::console::report::{self, Hinted};
use crate::daemon::{connect, process};
use crate::options::Global;

/// Stop the daemon; its sandboxes keep running
///
/// The next daemon takes them over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd stop\n  forkd stop --remove-sandboxes")]
pub(crate) struct Options {
    /// Remove all sandboxes first
    #[arg(long, alias = "stop-sandboxes")]
    remove_sandboxes: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let Some(socket) = connect::socket_of(global)? else {
        let hint = "name its socket with --socket, or leave out --url to stop your own daemon";
        return Err(Hinted::usage("cannot stop a daemon by its URL", hint).into());
    };
    let running = connect::running_client(global).await?;
    let mut left = 0;
    for sandbox in sandboxes(running.as_ref()).await? {
        match (&running, options.remove_sandboxes) {
            (Some(client), true) => client.delete_sandbox(&sandbox).await?,
            _ => left += 1,
        }
    }
    let stopped = match process::listener_of(&socket)? {
        None => false,
        Some(pid) => {
            tokio::task::spawn_blocking(move || process::terminate(pid)).await??;
            true
        }
    };
    if global.json {
        return output::json(&json!({ "stopped": stopped, "sandboxes_left": left }));
    }
    report::remark(if stopped { "stopped" } else { "no daemon is running" });
    if left > 0 {
        report::remark(&format!(
            "sandboxes that keep running: {left}; the next daemon takes them over"
        ));
    }
    Ok(())
}

async fn sandboxes(client: Option<&Client>) -> anyhow::Result<Vec<String>> {
    let Some(client) = client else { return Ok(Vec::new()) };
    Ok(client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id).collect())
}
