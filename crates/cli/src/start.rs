//! Sandboxes by name: of a snapshot, or of an image whose template is built when it is missing.

use anyhow::bail;
use forkd_api::{BuildEvent, CreateSandboxes, CreateSnapshot, Sandbox, Snapshot};
use forkd_client::{ApiFailure, BuildStream, Client, ClientError};
use forkd_types::OperationState;

use crate::progress::{self, Steps};
use crate::report::Hinted;

/// HTTP status of a stream whose outcome is told in its last line.
const STREAM_STATUS: u16 = 200;

/// Longest wait in one request; more follow until the operation has ended.
const WAIT_SECS: u64 = 600;

/// Sees to it that there is a snapshot of this name, unless no image has the name either. Two who
/// do so at once get the same one.
pub(crate) async fn prepare(client: &Client, name: &str) -> anyhow::Result<()> {
    match client.snapshot_info(name).await {
        Ok(info) => return settle(client, info.snapshot).await,
        Err(error) if has_code(&error, "snapshot_not_found") => {}
        Err(error) => return Err(error.into()),
    }
    let images = client.images().await?;
    if !images.iter().any(|image| image.name == name) {
        let names: Vec<String> = images.into_iter().map(|image| image.name).collect();
        return Err(Hinted::new(
            format!("there is no snapshot `{name}`, and no image of that name"),
            format!("images are: {}; `forkd snapshots` lists the snapshots", names.join(", ")),
        )
        .into());
    }
    let built = match client.build_snapshot(&CreateSnapshot::new(name, name)).await {
        Ok(stream) => follow_build(stream, name).await,
        Err(error) => Err(error.into()),
    };
    match built {
        Err(error) if error.downcast_ref().is_some_and(|e| has_code(e, "tag_taken")) => {
            settle(client, client.snapshot_info(name).await?.snapshot).await
        }
        built => built.map(drop),
    }
}

/// Waits for whoever writes the snapshot.
async fn settle(client: &Client, snapshot: Snapshot) -> anyhow::Result<()> {
    let Some(operation) = snapshot.operation_id else { return Ok(()) };
    progress::during(&format!("wait for `{}`", snapshot.tag), async {
        while client.wait_operation(&operation, WAIT_SECS).await?.state == OperationState::Running {
        }
        anyhow::Ok(())
    })
    .await
}

/// One sandbox.
pub(crate) async fn one(client: &Client, body: &CreateSandboxes) -> anyhow::Result<Sandbox> {
    let started = progress::during("start the sandbox", client.create_sandboxes(body)).await?;
    match started.into_iter().next() {
        Some(sandbox) => Ok(sandbox),
        None => bail!("the daemon started no sandbox"),
    }
}

/// Shows each step of a build until its outcome comes.
pub(crate) async fn follow_build(mut stream: BuildStream, tag: &str) -> anyhow::Result<Snapshot> {
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

fn has_code(error: &ClientError, code: &str) -> bool {
    matches!(error, ClientError::Api(failure) if failure.code == code)
}
