//! Ports of a sandbox: what listens, connections to it, and tokens for it.

use axum::Json;
use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_api::{CreatePortToken, ErrorBody, ErrorCode, Port, PortToken, UPGRADE_PROTOCOL};
use hyper::upgrade::OnUpgrade;
use tracing::Instrument as _;

use crate::app::App;
use crate::convert;
use crate::extract::{JsonBody, PortPath, PortWords, SandboxPath};
use crate::failure::Failure;
use crate::header_list::lists;
use crate::tunnel::{self, Place};

/// Lists the TCP ports that are listened on in a sandbox, by number and address.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Vec<Port>),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody,
            description = "The guest agent cannot do it, because it is older than this"),
        (status = 504, body = ErrorBody, description = "The guest agent does not answer")))]
pub(crate) async fn list(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<Json<Vec<Port>>, Failure> {
    let ports = app.engine.ports(&id).await?;
    Ok(Json(ports.into_iter().map(convert::port).collect()))
}

/// Connects to a TCP port of a sandbox.
///
/// The request has the headers `Connection: Upgrade` and `Upgrade: tcp`. After the status 101 the
/// connection is a raw byte stream to what listens on the port, on any address of the sandbox,
/// loopback too. It does not matter what the sandbox itself may reach. Bytes that pass count as use
/// of the sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports/{port}", tag = "sandboxes",
    params(PortWords),
    responses((status = 101, description = "From here on, a byte stream"),
        (status = 400, body = ErrorBody, description = "No port has this number"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody,
            description = "Nothing listens on the port, or the sandbox does not run"),
        (status = 422, body = ErrorBody, description = "The guest agent cannot connect"),
        (status = 426, body = ErrorBody, description = "The request has no `Upgrade: tcp`"),
        (status = 503, body = ErrorBody,
            description = "The sandbox has too many connections, or the gateway does not answer"),
        (status = 504, body = ErrorBody, description = "The port does not answer")))]
pub(crate) async fn connect(
    app: App,
    PortPath { sandbox, port }: PortPath,
    mut request: Request,
) -> Result<Response, Failure> {
    // Whoever may not know of it learns nothing from how it is asked for.
    app.engine.sandbox(&sandbox)?;
    let place = request.extensions().get::<Place>().cloned();
    let Some(upgrade) = upgrade(&mut request) else { return Ok(upgrade_required()) };
    let stream = app.engine.dial(&sandbox, port.get()).await?;
    let passed = async move {
        // The client may have gone.
        if let Ok(client) = upgrade.await {
            tunnel::pass(client, stream).await;
        }
        drop(place);
    };
    tokio::spawn(passed.in_current_span());
    Ok((StatusCode::SWITCHING_PROTOCOLS, UPGRADE_HEADERS).into_response())
}

/// Makes a token that opens a port of a sandbox in a browser, or to any client of HTTP.
///
/// Whoever has the token reaches this one port, until the token ends or is revoked. It is told
/// once.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ports/{port}/token", tag = "sandboxes",
    params(PortWords), request_body = CreatePortToken,
    responses((status = 201, body = PortToken), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody,
            description = "The daemon has no previews, or there are too many tokens")))]
pub(crate) async fn issue_token(
    app: App,
    PortPath { sandbox, port }: PortPath,
    JsonBody(body): JsonBody<CreatePortToken>,
) -> Result<(StatusCode, Json<PortToken>), Failure> {
    let ttl = body.check()?;
    app.engine.sandbox(&sandbox)?;
    let Some(previews) = app.previews() else {
        let text = "the daemon was started without previews";
        return Err(Failure::new(ErrorCode::NoPreviews, text));
    };
    let issued = app.engine.issue_port_token(&sandbox, port, ttl).await?;
    let token = PortToken {
        url: previews.url(&sandbox, port, &issued.token),
        host: previews.host(&sandbox, port),
        token: issued.token,
        expires_at_unix: convert::unix_seconds(issued.expires_at),
    };
    Ok((StatusCode::CREATED, Json(token)))
}

/// Makes all tokens for a port of a sandbox worthless.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/ports/{port}/token", tag = "sandboxes",
    params(PortWords),
    responses((status = 204), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody, description = "No such sandbox")))]
pub(crate) async fn revoke_tokens(
    app: App,
    PortPath { sandbox, port }: PortPath,
) -> Result<StatusCode, Failure> {
    app.engine.revoke_port_tokens(&sandbox, port).await?;
    Ok(StatusCode::NO_CONTENT)
}

const UPGRADE_HEADERS: [(HeaderName, &str); 2] =
    [(CONNECTION, "upgrade"), (UPGRADE, UPGRADE_PROTOCOL)];

/// What the connection becomes, if the request wants it and it can. HTTP/2 cannot.
fn upgrade(request: &mut Request) -> Option<OnUpgrade> {
    let headers = request.headers();
    let wanted =
        lists(headers, &CONNECTION, "upgrade") && lists(headers, &UPGRADE, UPGRADE_PROTOCOL);
    if wanted { request.extensions_mut().remove::<OnUpgrade>() } else { None }
}

fn upgrade_required() -> Response {
    let text =
        "a connection to a port needs HTTP/1.1 with `Connection: Upgrade` and `Upgrade: tcp`";
    let mut response = Failure::new(ErrorCode::UpgradeRequired, text).into_response();
    // The standard demands it of this status.
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(UPGRADE_PROTOCOL));
    response
}
