//! The same for each of several sandboxes: one that fails does not save the others.

use std::process::ExitCode;

use forkd_api::Sandbox;
use forkd_client::{Client, ClientError};

use crate::args::Global;
use crate::exit::Exit;
use crate::{connect, output, report};

/// Does `what` to each and prints those for which it was done.
pub(super) async fn sandbox(
    global: &Global,
    ids: Vec<String>,
    what: impl AsyncFn(&Client, &str) -> Result<Sandbox, ClientError>,
) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let (mut done, mut exit) = (Vec::new(), ExitCode::from(Exit::Ok));
    for id in ids {
        match what(&client, &id).await {
            Ok(sandbox) => done.push(sandbox),
            Err(error) => exit = report::failure(&error.into()),
        }
    }
    if global.json {
        output::json(&done)?;
    } else {
        done.iter().try_for_each(|sandbox| output::line(&sandbox.id))?;
    }
    Ok(exit)
}
