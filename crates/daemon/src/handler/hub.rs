//! What registries have that was pushed from a daemon.

use axum::Json;
use forkd_api::{ErrorBody, HubEntry, HubListing, HubSnapshot};
use forkd_engine::Signer;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::app::App;
use crate::extract::Query;
use crate::failure::Failure;

/// Of a foreign text, as much as is shown.
const TEXT_CHARS: usize = 300;

/// Which snapshot.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HubSnapshotQuery {
    /// Where it is: registry, name, and tag or digest.
    #[param(example = "registry.example/team/warm:v1")]
    reference: String,
}

/// Tells what a registry has under a reference, and whether it would start here. Only an admin may.
///
/// No memory is fetched. The signature is right, whoever made it; pull it only if you trust the
/// key. The daemon uses the credentials that `docker login` keeps for its user.
#[utoipa::path(get, path = "/v1/hub/snapshot", tag = "snapshots", params(HubSnapshotQuery),
    responses((status = 200, body = HubSnapshot),
        (status = 400, body = ErrorBody, description = "The reference is wrong"),
        (status = 403, body = ErrorBody, description = "You are no admin"),
        (status = 422, body = ErrorBody, description = "It is no snapshot, or is damaged"),
        (status = 502, body = ErrorBody, description = "The registry does not give it")))]
pub(crate) async fn snapshot(
    app: App,
    Query(query): Query<HubSnapshotQuery>,
) -> Result<Json<HubSnapshot>, Failure> {
    let found = app.engine.hub_snapshot(&query.reference).await?;
    let trusted_as = match &found.signer {
        Signer::Trusted(name) => Some(name.clone()),
        Signer::Own | Signer::Unknown => None,
    };
    let manifest = found.manifest;
    let machine = &manifest.machine.vmm;
    Ok(Json(HubSnapshot {
        reference: found.reference,
        bytes: found.bytes,
        tag: short(&manifest.tag),
        created_at_unix: manifest.created_at_unix,
        ancestors: manifest.ancestors.iter().map(|tag| short(tag)).collect(),
        key: found.key.to_string(),
        trusted: found.signer != Signer::Unknown,
        trusted_as,
        image: short(&manifest.image.name),
        mem_size_mib: manifest.memory_bytes.get() >> 20,
        vcpus: manifest.vcpus,
        accelerator: short(&machine.accelerator),
        vmm_version: short(&machine.vmm_version),
        cpu_model: short(&machine.cpu_model),
        memory_layers: count(manifest.layers.len()),
        disk_overlays: count(manifest.overlays.len()),
        problem: found.unfit,
    }))
}

/// Where to look, and for what.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HubSearchQuery {
    /// The registry's host, with a port if it has one of its own.
    #[param(example = "registry.example")]
    registry: String,
    /// What must be in the name of the repository.
    #[serde(default)]
    name: String,
}

/// Looks for snapshots in a registry. Only an admin may.
///
/// A registry that lists nothing, as Docker Hub does, is answered with 400. The daemon uses the
/// credentials that `docker login` keeps for its user.
#[utoipa::path(get, path = "/v1/hub/snapshots", tag = "snapshots", params(HubSearchQuery),
    responses((status = 200, body = HubListing),
        (status = 400, body = ErrorBody,
            description = "It is no name of a registry, or the registry lists nothing"),
        (status = 403, body = ErrorBody, description = "You are no admin"),
        (status = 502, body = ErrorBody, description = "The registry does not answer")))]
pub(crate) async fn search(
    app: App,
    Query(query): Query<HubSearchQuery>,
) -> Result<Json<HubListing>, Failure> {
    let found = app.engine.hub_search(&query.registry, &query.name).await?;
    let snapshots = found.snapshots.into_iter().map(|entry| HubEntry {
        reference: entry.reference,
        digest: entry.digest.to_string(),
        bytes: entry.bytes,
    });
    Ok(Json(HubListing { snapshots: snapshots.collect(), is_complete: found.is_complete }))
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS).collect()
}

fn count(parts: usize) -> u32 {
    u32::try_from(parts).unwrap_or(u32::MAX)
}
