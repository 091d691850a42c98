//! `forkd operation`: one operation.

use std::process::ExitCode;

use clap::Subcommand;
use forkd_api::Operation;

use crate::args::Global;
use crate::exit::Exit;
use crate::{connect, output, report};

/// Longest wait in one request; more follow until the operation has ended.
const WAIT_SECS: u64 = 600;

/// Wait for one operation, or cancel it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd operation wait op-0123456789ab\n  \
    forkd operation cancel op-0123456789ab")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
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
        What::Wait { id } => (id, "succeeded"),
        What::Cancel { id } => {
            client.cancel_operation(&id).await?;
            (id, "cancelled")
        }
    };
    let ended = loop {
        let operation = client.wait_operation(&id, WAIT_SECS).await?;
        if operation.state != "running" {
            break operation;
        }
    };
    if global.json {
        output::json(&ended)?;
    } else {
        tell(&ended);
    }
    Ok(if ended.state == wanted { Exit::Ok } else { Exit::Error }.into())
}

fn tell(operation: &Operation) {
    report::note(&format!("{} {}", operation.id, operation.state));
    if let Some(error) = &operation.error {
        report::note(&format!("error: {}", report::printable(&error.error)));
        report::note(&format!("hint: {}", report::printable(&error.hint)));
    }
}
