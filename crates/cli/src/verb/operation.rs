//! `forkd operation`: one operation.

use std::process::ExitCode;

use clap::Subcommand;
use forkd_api::Operation;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::exit::Exit;
use crate::follow;
use crate::options::Global;

/// Show, wait for or cancel one operation
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd operation info op-0123456789ab\n  \
    forkd operation wait op-0123456789ab\n  \
    forkd operation cancel op-0123456789ab")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is known of an operation
    Info {
        /// The operation
        id: String,
    },
    /// Wait for an operation to end; fails unless it succeeds
    Wait {
        /// The operation
        id: String,
    },
    /// Cancel an operation and wait until all of its work is undone
    Cancel {
        /// The operation
        id: String,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let (id, wanted) = match options.what {
        What::Info { id } => {
            info(global, client.operation(&id).await?)?;
            return Ok(Exit::Ok.into());
        }
        What::Wait { id } => (id, "succeeded"),
        What::Cancel { id } => {
            client.cancel_operation(&id).await?;
            (id, "cancelled")
        }
    };
    let ended = follow::operation(&client, &id).await?;
    if global.json {
        output::json(&ended)?;
    } else {
        tell(&ended);
    }
    Ok(if ended.state == wanted { Exit::Ok } else { Exit::Error }.into())
}

fn info(global: &Global, operation: Operation) -> anyhow::Result<()> {
    if global.json {
        return output::json(&operation);
    }
    let mut facts = vec![
        ("operation", operation.id.clone()),
        ("kind", operation.kind.clone()),
        ("state", operation.state.clone()),
        ("step", follow::step(&operation)),
        ("age", output::age(operation.created_at_unix)),
    ];
    let more = [
        ("snapshot", operation.snapshot_tag),
        ("sandbox", operation.sandbox_id),
        ("ended", operation.ended_at_unix.map(|at| format!("{} ago", output::age(at)))),
        ("error", operation.error.map(|error| error.error)),
    ];
    facts.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
    output::facts(&facts)
}

fn tell(operation: &Operation) {
    report::remark(&format!("{} {}", operation.id, operation.state));
    if let Some(error) = &operation.error {
        report::note(&format!("error: {}", report::printable(&error.error)));
        report::note(&format!("hint: {}", report::printable(&error.hint)));
    }
}
