//! `forkd rm`: remove sandboxes.

use std::process::ExitCode;

use serde_json::json;

use crate::args::Global;
use crate::exit::Exit;
use crate::{connect, output, report};

/// Remove sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd rm sb-0123456789ab\n  forkd rm --all")]
pub(crate) struct Options {
    /// The sandboxes
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    sandboxes: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let ids = if options.all {
        client.sandboxes().await?.into_iter().map(|sandbox| sandbox.id).collect()
    } else {
        options.sandboxes
    };
    let (mut removed, mut exit) = (Vec::new(), ExitCode::from(Exit::Ok));
    for id in ids {
        // One that cannot be removed does not save the others.
        match client.delete_sandbox(&id).await {
            Ok(()) => removed.push(id),
            Err(error) => exit = report::failure(&error.into()),
        }
    }
    if global.json {
        output::json(&json!({ "removed": removed }))?;
    } else {
        removed.iter().try_for_each(|id| output::line(id))?;
    }
    Ok(exit)
}
