//! Sandboxes by name: of a snapshot, or of an image whose template is built when it is missing.

use anyhow::Context as _;
use forkd_api::{CreateSandboxes, CreateSnapshot, Sandbox, Snapshot};
use forkd_client::{Client, ClientError};

use crate::console::progress;
use crate::console::report::Hinted;
use crate::follow;

/// Sees to it that there is a snapshot of this name, unless no image has the name either. Two who
/// do so at once get the same one.
pub(crate) async fn prepare(client: &Client, name: &str) -> anyhow::Result<()> {
    match client.snapshot_info(name).await {
        Ok(info) => return until_written(client, info.snapshot).await,
        Err(error) if has_code(&error, "snapshot_not_found") => {}
        Err(error) => return Err(error.into()),
    }
    let images = client.images().await?;
    if !images.iter().any(|image| image.name == name) {
        let names: Vec<String> = images.into_iter().map(|image| image.name).collect();
        return Err(Hinted::new(
            format!("there is no snapshot or image `{name}`"),
            format!("the images are: {}; `forkd snapshots` lists the snapshots", names.join(", ")),
        )
        .into());
    }
    let built = match client.build_snapshot(&CreateSnapshot::new(name, name)).await {
        Ok(stream) => follow::build(stream, name).await,
        Err(error) => Err(error.into()),
    };
    match built {
        Err(error) if error.downcast_ref().is_some_and(|e| has_code(e, "tag_taken")) => {
            until_written(client, client.snapshot_info(name).await?.snapshot).await
        }
        built => built.map(drop),
    }
}

/// Waits for whoever writes the snapshot. How that ends is seen when it is used.
async fn until_written(client: &Client, snapshot: Snapshot) -> anyhow::Result<()> {
    if let Some(operation) = snapshot.operation_id {
        follow::operation(client, &operation).await?;
    }
    Ok(())
}

/// One sandbox.
pub(crate) async fn one(client: &Client, body: &CreateSandboxes) -> anyhow::Result<Sandbox> {
    let started = progress::during("start the sandbox", client.create_sandboxes(body)).await?;
    started.into_iter().next().context("the daemon started no sandbox")
}

fn has_code(error: &ClientError, code: &str) -> bool {
    matches!(error, ClientError::Api(failure) if failure.code == code)
}

/// The daemon may run in another directory: what names a file here names it from the root on.
pub(crate) fn absolute(reference: &str) -> anyhow::Result<String> {
    let Some((transport, path)) = reference.split_once(':') else {
        return Ok(reference.to_owned());
    };
    if !matches!(transport, "oci" | "oci-archive" | "docker-archive") || path.is_empty() {
        return Ok(reference.to_owned());
    }
    let path = std::path::absolute(path).context("find the current directory")?;
    Ok(format!("{transport}:{}", path.display()))
}
