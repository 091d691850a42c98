//! Following what takes long to its end, with each step on the way.

use anyhow::bail;
use forkd_api::{BuildEvent, Operation, Snapshot};
use forkd_client::{ApiFailure, BuildStream, Client, ClientError};

use crate::console::progress::Steps;
use crate::console::{manner, report};

/// HTTP status of a stream whose outcome is told in its last line.
const STREAM_STATUS: u16 = 200;

/// Wait in one request; more follow until the operation has ended. Less than what a silent
/// connection may last where something between us and the daemon counts.
const WAIT_SECS: u64 = 600;

/// Between two looks at an operation that somebody watches.
const WATCH_SECS: u64 = 1;

/// Waits for the end of an operation.
pub(crate) async fn operation(client: &Client, id: &str) -> Result<Operation, ClientError> {
    let (steps, secs) = match manner::shows_progress() {
        true => (Some(Steps::of(id)), WATCH_SECS),
        false => (None, WAIT_SECS),
    };
    let mut operation = client.wait_operation(id, 0).await?;
    while operation.state == "running" {
        if let Some(steps) = &steps {
            steps.show(&format!("{}: {}", operation.kind, operation.step));
            steps.parts(operation.done.zip(operation.total));
        }
        operation = client.wait_operation(id, secs).await?;
    }
    Ok(operation)
}

/// What an operation is at.
pub(crate) fn step(operation: &Operation) -> String {
    let parts = operation.done.zip(operation.total);
    let parts = parts.map(|(done, total)| format!(" {done}/{total}")).unwrap_or_default();
    report::printable_line(&format!("{}{parts}", operation.step))
}

/// Shows each step of a build until its outcome comes.
pub(crate) async fn build(mut stream: BuildStream, tag: &str) -> anyhow::Result<Snapshot> {
    let steps = Steps::of(tag);
    while let Some(event) = stream.next().await? {
        match event {
            BuildEvent::Step(name) => steps.show(&format!("{tag}: {name}")),
            BuildEvent::Snapshot(snapshot) => return Ok(*snapshot),
            BuildEvent::Error(body) => {
                return Err(ClientError::Api(ApiFailure::new(STREAM_STATUS, body)).into());
            }
        }
    }
    bail!("the daemon went away while it built `{tag}`")
}
