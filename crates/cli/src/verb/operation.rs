//! `forkd operation`: one operation.

use std::process::ExitCode;

use clap::Subcommand;
use forkd_api::Operation;
use forkd_client::{Client, ClientError};
use forkd_types::OperationState;

use crate::args::Global;
use crate::exit::Exit;
use crate::progress::Steps;
use crate::{connect, manner, output, report};

/// Longest wait in one request; more follow until the operation has ended.
const WAIT_SECS: u64 = 600;

/// Between two looks at an operation that somebody watches.
const WATCH_SECS: u64 = 1;

/// Describe one operation, wait for it, or cancel it
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
    /// Describe an operation
    Info {
        /// The operation
        id: String,
    },
    /// Wait until an operation has ended; fails unless it has succeeded
    Wait {
        /// The operation
        id: String,
    },
    /// Cancel an operation and wait until what it has done is undone
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
        What::Wait { id } => (id, OperationState::Succeeded),
        What::Cancel { id } => {
            client.cancel_operation(&id).await?;
            (id, OperationState::Cancelled)
        }
    };
    let ended = wait(&client, &id).await?;
    if global.json {
        output::json(&ended)?;
    } else {
        tell(&ended);
    }
    Ok(if ended.state == wanted { Exit::Ok } else { Exit::Error }.into())
}

/// Waits for the end and shows the steps on the way there.
async fn wait(client: &Client, id: &str) -> Result<Operation, ClientError> {
    let (steps, secs) = match manner::shows_progress() {
        true => (Some(Steps::of(id)), WATCH_SECS),
        false => (None, WAIT_SECS),
    };
    let mut operation = client.wait_operation(id, 0).await?;
    while operation.state == OperationState::Running {
        if let Some(steps) = &steps {
            steps.show(&format!("{}: {}", operation.kind, operation.step));
            steps.parts(operation.done.zip(operation.total));
        }
        operation = client.wait_operation(id, secs).await?;
    }
    Ok(operation)
}

/// What an operation is at.
pub(super) fn step(operation: &Operation) -> String {
    let parts = operation.done.zip(operation.total);
    let parts = parts.map(|(done, total)| format!(" {done}/{total}")).unwrap_or_default();
    report::printable_line(&format!("{}{parts}", operation.step))
}

fn info(global: &Global, operation: Operation) -> anyhow::Result<()> {
    if global.json {
        return output::json(&operation);
    }
    let mut facts = vec![
        ("operation", operation.id.clone()),
        ("kind", operation.kind.to_string()),
        ("state", operation.state.to_string()),
        ("step", step(&operation)),
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
