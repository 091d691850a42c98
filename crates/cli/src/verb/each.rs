//! The same for each of several things: one that fails does not save the others.

use std::process::ExitCode;

use forkd_api::Sandbox;
use forkd_client::{Client, ClientError};
use serde_json::json;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::exit::{Codes, Exit};
use crate::options::Global;

/// Does `what` to each sandbox and prints those for which it was done.
pub(super) async fn sandbox(
    global: &Global,
    ids: Vec<String>,
    what: impl AsyncFn(&Client, &str) -> Result<Sandbox, ClientError>,
) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let (done, exit) = each(ids, async |id| what(&client, id).await).await;
    if global.json {
        output::json(&done)?;
    } else {
        done.iter().try_for_each(|sandbox| output::line(&sandbox.id))?;
    }
    Ok(exit.into())
}

/// Removes each by its name and prints the names of those that are gone.
pub(super) async fn removed(
    global: &Global,
    names: Vec<String>,
    remove: impl AsyncFn(&str) -> Result<(), ClientError>,
) -> anyhow::Result<ExitCode> {
    let remove = async |name: &str| remove(name).await.map(|()| name.to_owned());
    let (removed, exit) = each(names, remove).await;
    if global.json {
        output::json(&json!({ "removed": removed }))?;
    } else {
        removed.iter().try_for_each(|name| output::line(name))?;
    }
    Ok(exit.into())
}

async fn each<T>(
    names: Vec<String>,
    what: impl AsyncFn(&str) -> Result<T, ClientError>,
) -> (Vec<T>, Exit) {
    let (mut done, mut exit) = (Vec::new(), Exit::Ok);
    for name in names {
        match what(&name).await {
            Ok(result) => done.push(result),
            Err(error) => exit = Codes::Verb.of_failure(report::failure(&error.into())),
        }
    }
    (done, exit)
}
