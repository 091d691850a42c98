//! Private networks: create, list, remove, and who is a member.

use axum::Json;
use axum::http::StatusCode;
use forkd_api::{CreateNetwork, ErrorBody, Network, Sandbox};

use crate::app::{App, to_the_end};
use crate::convert;
use crate::extract::{JsonBody, MemberPath, MemberWords, NetworkPath};
use crate::failure::Failure;

/// Lists your private networks.
#[utoipa::path(get, path = "/v1/networks", tag = "networks",
    responses((status = 200, body = Vec<Network>), (status = 401, body = ErrorBody)))]
pub(crate) async fn list(app: App) -> Result<Json<Vec<Network>>, Failure> {
    Ok(Json(app.engine.networks().into_iter().map(convert::network).collect()))
}

/// Creates a private network without members.
///
/// Sandboxes become members when they are started or branched with its name in `network.join`, or
/// later.
#[utoipa::path(post, path = "/v1/networks", tag = "networks", request_body = CreateNetwork,
    responses((status = 201, body = Network),
        (status = 400, body = ErrorBody, description = "The name is wrong"),
        (status = 409, body = ErrorBody, description = "You have a network of this name"),
        (status = 503, body = ErrorBody, description = "You have as many as you may have")))]
pub(crate) async fn create(
    app: App,
    JsonBody(body): JsonBody<CreateNetwork>,
) -> Result<(StatusCode, Json<Network>), Failure> {
    let name = body.check()?;
    let made = to_the_end(async move { app.engine.create_network(name).await }).await?;
    Ok((StatusCode::CREATED, Json(convert::network(made))))
}

/// Tells of one of your private networks.
#[utoipa::path(get, path = "/v1/networks/{name}", tag = "networks",
    params(("name" = String, Path, description = "The network's name")),
    responses((status = 200, body = Network), (status = 404, body = ErrorBody)))]
pub(crate) async fn one(
    app: App,
    NetworkPath(name): NetworkPath,
) -> Result<Json<Network>, Failure> {
    Ok(Json(convert::network(app.engine.network(&name)?)))
}

/// Removes a private network of yours. Connections between its members are reset.
#[utoipa::path(delete, path = "/v1/networks/{name}", tag = "networks",
    params(("name" = String, Path, description = "The network's name")),
    responses((status = 204), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "The gateway does not answer")))]
pub(crate) async fn remove(
    app: App,
    NetworkPath(name): NetworkPath,
) -> Result<StatusCode, Failure> {
    to_the_end(async move { app.engine.remove_network(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a sandbox a member of a network of its owner's. It stays one if it is one.
///
/// Other members reach it at once. It gets an address that it keeps for as long as it is a member.
#[utoipa::path(put, path = "/v1/networks/{name}/members/{sandbox}", tag = "networks",
    params(MemberWords),
    responses((status = 200, body = Sandbox),
        (status = 404, body = ErrorBody, description = "No such network or sandbox"),
        (status = 409, body = ErrorBody,
            description = "It does not run, or has no network device"),
        (status = 503, body = ErrorBody,
            description = "A limit is reached, or the gateway does not answer")))]
pub(crate) async fn join(
    app: App,
    MemberPath { network, sandbox }: MemberPath,
) -> Result<Json<Sandbox>, Failure> {
    let engine = app.engine.clone();
    let joined = async move { engine.join_network(&sandbox, &network).await };
    Ok(Json(app.sandbox(to_the_end(joined).await?)))
}

/// Makes a sandbox a member of a network no longer. Its connections over it are reset.
#[utoipa::path(delete, path = "/v1/networks/{name}/members/{sandbox}", tag = "networks",
    params(MemberWords),
    responses((status = 200, body = Sandbox),
        (status = 404, body = ErrorBody, description = "No such sandbox, or it is no member"),
        (status = 409, body = ErrorBody,
            description = "It does not run, or has no network device"),
        (status = 503, body = ErrorBody, description = "The gateway does not answer")))]
pub(crate) async fn leave(
    app: App,
    MemberPath { network, sandbox }: MemberPath,
) -> Result<Json<Sandbox>, Failure> {
    let engine = app.engine.clone();
    let left = async move { engine.leave_network(&sandbox, &network).await };
    Ok(Json(app.sandbox(to_the_end(left).await?)))
}
