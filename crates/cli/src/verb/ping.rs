//! `forkd ping`: does a guest answer?

use std::time::Instant;

use crate::args::Global;
use crate::{connect, output};

/// Ask the guest agent of a sandbox for a sign of life
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
        ("greeted", format!("{} times", pong.epoch)),
        ("requests", format!("{} under way", pong.requests_running)),
    ])
}
