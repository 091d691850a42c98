//! `forkd ping`: does a guest answer?

use std::time::Instant;

use crate::console::output;
use crate::daemon::connect;
use crate::options::Global;

/// Check that the guest agent of a sandbox answers
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd ping sb-0123456789ab")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let begun = Instant::now();
    let pong = client.ping(&options.sandbox).await?;
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    if global.json {
        return output::json(&pong);
    }
    output::facts(&[
        ("answered in", output::milliseconds(took)),
        ("up for", output::milliseconds(pong.uptime_ms)),
        ("connections", pong.epoch.to_string()),
        ("requests", format!("{} running", pong.requests_running)),
    ])
}
