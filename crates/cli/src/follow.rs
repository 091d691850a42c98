//! Following what takes long to its end, with each step on the way.

use std::time::Duration;

use anyhow::bail;
use forkd_api::{BuildEvent, Operation, Snapshot};
use forkd_client::{ApiFailure, BuildStream, Client, ClientError};
use forkd_types::{OperationKind, OperationState};

use crate::console::progress::{Bar, Steps};
use crate::console::{manner, report};

/// HTTP status of a stream whose outcome is told in its last line.
const STREAM_STATUS: u16 = 200;

/// Wait in one request; more follow until the operation has ended. Less than what a silent
/// connection may last where something between us and the daemon counts.
const WAIT_SECS: u64 = 600;

/// Between two looks at an operation that somebody watches.
const WATCH_SECS: u64 = 1;

/// Between two looks at a transfer.
const LOOK: Duration = Duration::from_millis(500);

/// Waits for the end of an operation.
pub(crate) async fn operation(client: &Client, id: &str) -> Result<Operation, ClientError> {
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

/// Waits for `work`, which is the newest operation of `kind`, and shows its bytes.
pub(crate) async fn bytes_of<T>(
    client: &Client,
    kind: OperationKind,
    name: &str,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    if !manner::shows_progress() {
        return work.await;
    }
    let (mut bar, mut shown) = (Bar::of_bytes(name, 0), 0);
    tokio::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, &mut work).await {
            return done;
        }
        // Without an answer the bar stays as it is; what counts is the work.
        let running = client.operations(Some(OperationState::Running.name())).await;
        let running = running.unwrap_or_default();
        let newest = running.iter().rfind(|operation| operation.kind == kind);
        let Some((done, all)) = newest.and_then(|found| found.done.zip(found.total)) else {
            continue;
        };
        if all != shown {
            (bar, shown) = (Bar::of_bytes(name, all), all);
        }
        bar.at(done);
    }
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
