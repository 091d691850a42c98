//! Sandboxes: list, start, describe, remove.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::{CreateSandboxes, ErrorBody, Sandbox};

use crate::app::{App, to_the_end};
use crate::convert;
use crate::extract::{JsonBody, SandboxPath};
use crate::failure::Failure;

/// Lists all sandboxes.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes",
    responses((status = 200, body = Vec<Sandbox>), (status = 500, body = ErrorBody)))]
pub(crate) async fn list(State(app): State<App>) -> Json<Vec<Sandbox>> {
    Json(app.engine.sandboxes().into_iter().map(convert::sandbox).collect())
}

/// Starts sandboxes from a snapshot: all that were asked for, or none.
///
/// Each has confirmed an identity of its own before it is handed out. `per_child_netns`, `prewarm`,
/// `live_fork` and `hugepages` are accepted for clients of other implementations: here sandboxes
/// never share a network, every one can be branched live, the first branch is as fast as the
/// others, and memory is shared in pages of 4 KiB.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandboxes,
    responses((status = 201, body = Vec<Sandbox>),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
        (status = 409, body = ErrorBody, description = "The snapshot is not usable"),
        (status = 502, body = ErrorBody, description = "A child did not confirm its identity"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn create(
    State(app): State<App>,
    JsonBody(body): JsonBody<CreateSandboxes>,
) -> Result<(StatusCode, Json<Vec<Sandbox>>), Failure> {
    let tag = body.check()?;
    let sandboxes = to_the_end(async move { app.engine.fork(&tag, body.n).await }).await?;
    Ok((StatusCode::CREATED, Json(sandboxes.into_iter().map(convert::sandbox).collect())))
}

/// Tells of one sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Sandbox), (status = 404, body = ErrorBody)))]
pub(crate) async fn one(
    State(app): State<App>,
    SandboxPath(id): SandboxPath,
) -> Result<Json<Sandbox>, Failure> {
    Ok(Json(convert::sandbox(app.engine.sandbox(&id)?)))
}

/// Removes a sandbox.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    State(app): State<App>,
    SandboxPath(id): SandboxPath,
) -> Result<StatusCode, Failure> {
    to_the_end(async move { app.engine.remove_sandbox(&id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
