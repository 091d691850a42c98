//! Sandboxes: list, start, describe, remove.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use forkd_api::{CheckedCreateSandboxes, CreateSandboxes, ErrorBody, RollbackSandbox, Sandbox};
use forkd_engine::SandboxOptions;

use crate::app::{App, to_the_end};
use crate::extract::{JsonBody, Query, SandboxPath};
use crate::failure::Failure;

/// In the query, what stands before the key of a metadata filter.
const METADATA_PREFIX: &str = "metadata.";

/// Lists all sandboxes, or those whose metadata has certain words.
///
/// `?metadata.user=ann&metadata.job=7` gives those that have both.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes",
    params(("metadata.*" = Option<String>, Query,
        description = "In place of `*` a key; only sandboxes that have this value there")),
    responses((status = 200, body = Vec<Sandbox>),
        (status = 400, body = ErrorBody, description = "A parameter that is no such filter")))]
pub(crate) async fn list(
    app: App,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<Vec<Sandbox>>, Failure> {
    let wanted = metadata_filter(query)?;
    let has_all = |sandbox: &forkd_engine::Sandbox| {
        let metadata = &sandbox.options.metadata;
        wanted.iter().all(|(key, value)| metadata.get(key) == Some(value))
    };
    let sandboxes = app.engine.sandboxes().into_iter().filter(has_all);
    Ok(Json(sandboxes.map(|sandbox| app.sandbox(sandbox)).collect()))
}

/// The keys and values that a query asks for.
fn metadata_filter(query: Vec<(String, String)>) -> Result<Vec<(String, String)>, Failure> {
    let filter = |(name, value): (String, String)| match name.strip_prefix(METADATA_PREFIX) {
        Some(key) => Ok((key.to_owned(), value)),
        None => {
            let shown: String = name.chars().take(40).collect();
            let text = format!("{shown}: is no filter; use `metadata.KEY=VALUE`");
            Err(Failure::bad_request(text))
        }
    };
    query.into_iter().map(filter).collect()
}

/// Starts sandboxes from a snapshot: all that were asked for, or none.
///
/// Each has confirmed an identity of its own before it is handed out. With `memory_limit_mib` and
/// `per_child_netns` each VMM is confined from its start on; where the host does not permit that,
/// nothing is started. `prewarm`, `live_fork` and `hugepages` are accepted for clients of other
/// implementations: here every sandbox can be branched live, the first branch is as fast as the
/// others, and memory is shared in pages of 4 KiB.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandboxes,
    responses((status = 201, body = Vec<Sandbox>),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 403, body = ErrorBody, description = "The operator does not permit that network"),
        (status = 404, body = ErrorBody, description = "No such snapshot, or private network"),
        (status = 409, body = ErrorBody,
            description = "The snapshot is not usable, or this host cannot confine VMMs so"),
        (status = 422, body = ErrorBody, description = "The memory limit is too small to start"),
        (status = 502, body = ErrorBody, description = "A child did not confirm its identity"),
        (status = 503, body = ErrorBody, description = "A limit is reached; the error says which"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn create(
    app: App,
    JsonBody(body): JsonBody<CreateSandboxes>,
) -> Result<(StatusCode, Json<Vec<Sandbox>>), Failure> {
    let CheckedCreateSandboxes { tag, ttl, idle_timeout, memory_limit, network, join } =
        body.check()?;
    let tag = app.tag(tag);
    let options = SandboxOptions {
        owner: app.engine.caller().owner().clone(),
        metadata: Arc::new(body.metadata),
        ttl,
        idle_timeout,
        memory_limit,
        own_network: body.per_child_netns,
        network,
        join,
        ..SandboxOptions::default()
    };
    let engine = app.engine.clone();
    let started = async move { engine.fork_with(&tag, body.n, options).await };
    let sandboxes = to_the_end(started).await?;
    Ok((
        StatusCode::CREATED,
        Json(sandboxes.into_iter().map(|sandbox| app.sandbox(sandbox)).collect()),
    ))
}

/// Tells of one sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody)))]
pub(crate) async fn one(app: App, SandboxPath(id): SandboxPath) -> Result<Json<Sandbox>, Failure> {
    Ok(Json(app.sandbox(app.engine.sandbox(&id)?)))
}

/// Removes a sandbox.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(app: App, SandboxPath(id): SandboxPath) -> Result<StatusCode, Failure> {
    to_the_end(async move { app.engine.remove_sandbox(&id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stops a sandbox's vCPUs. A paused one takes no requests and no branches; its clocks stand still.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The sandbox does not run")))]
pub(crate) async fn pause(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<Json<Sandbox>, Failure> {
    let engine = app.engine.clone();
    let sandbox = to_the_end(async move { engine.pause_sandbox(&id).await }).await?;
    Ok(Json(app.sandbox(sandbox)))
}

/// Lets a paused sandbox run again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The sandbox does not run")))]
pub(crate) async fn resume(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<Json<Sandbox>, Failure> {
    let engine = app.engine.clone();
    let sandbox = to_the_end(async move { engine.resume_sandbox(&id).await }).await?;
    Ok(Json(app.sandbox(sandbox)))
}

/// Puts a sandbox back to what a snapshot holds.
///
/// Its VM is replaced by a child of the snapshot; id, metadata and time to live stay. What the
/// sandbox did since is lost, and so are requests under way. When the child does not start the
/// sandbox is dead.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/rollback", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = RollbackSandbox,
    responses((status = 200, body = Sandbox),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or snapshot"),
        (status = 409, body = ErrorBody,
            description = "The sandbox does not run, or the snapshot is not ready")))]
pub(crate) async fn rollback(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<RollbackSandbox>,
) -> Result<Json<Sandbox>, Failure> {
    let tag = app.tag(body.check()?);
    let engine = app.engine.clone();
    let rolled = to_the_end(async move { engine.roll_back_sandbox(&id, &tag).await });
    Ok(Json(app.sandbox(rolled.await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_does_not_exist_is_refused_by_its_name_and_not_passed_over() {
        let pair = |name: &str| vec![(name.to_owned(), "v".to_owned())];
        let filter = metadata_filter(pair("metadata.a.b")).unwrap();
        assert_eq!(filter, [("a.b".to_owned(), "v".to_owned())]);
        let refusal = metadata_filter(pair("state")).unwrap_err().body().error;
        assert!(refusal.starts_with("state: "), "{refusal}");
    }
}
