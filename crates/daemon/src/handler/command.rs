//! Running things in a sandbox, and what its console says.

use axum::Json;
use axum::http::HeaderName;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use forkd_api::{
    ErrorBody, EvalAnswer, EvalRequest, ExecAnswer, ExecRequest, MISSING_BYTES_HEADER, Pong,
};
use forkd_engine::guest;

use crate::app::App;
use crate::convert;
use crate::extract::{JsonBody, SandboxPath};
use crate::failure::Failure;

/// Runs a program in a sandbox and collects what it writes.
///
/// A program that fails or runs out of time is no error: see `exit_code` and `timed_out`. When the
/// client goes away the program is killed. `stdout_base64` and `stderr_base64` are present only
/// when the bytes are not UTF-8.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = ExecRequest,
    responses((status = 200, body = ExecAnswer),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "The program could not be started"),
        (status = 504, body = ErrorBody, description = "The guest agent does not answer")))]
pub(crate) async fn exec(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<ExecRequest>,
) -> Result<Json<ExecAnswer>, Failure> {
    let checked = body.check()?;
    let request = guest::ExecRequest {
        args: body.args,
        env: body.env.into_iter().collect(),
        cwd: body.cwd,
        user: body.user,
        stdin: checked.stdin,
        timeout: checked.timeout,
    };
    Ok(Json(convert::exec(app.engine.exec(&id, request).await?)))
}

/// Runs Python code in the sandbox's persistent interpreter.
///
/// An exception is no error of the request: see `error` and `exit_code`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/eval", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = EvalRequest,
    responses((status = 200, body = EvalAnswer),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "The image has no Python"),
        (status = 504, body = ErrorBody, description = "The guest agent does not answer")))]
pub(crate) async fn eval(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<EvalRequest>,
) -> Result<Json<EvalAnswer>, Failure> {
    let timeout = body.check()?;
    let request = guest::EvalRequest { code: body.code, timeout };
    Ok(Json(convert::eval(app.engine.eval(&id, request).await?)))
}

/// Asks the guest agent for a sign of life.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/ping", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Pong),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 504, body = ErrorBody, description = "The guest agent does not answer")))]
pub(crate) async fn ping(app: App, SandboxPath(id): SandboxPath) -> Result<Json<Pong>, Failure> {
    Ok(Json(convert::pong(app.engine.ping(&id).await?)))
}

/// Gives the last MiB of what the guest wrote to its console, unfiltered: do not print it to a
/// terminal as it is.
///
/// `x-forkd-missing-bytes` says how much the guest had written before that.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/logs", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream",
            headers(("x-forkd-missing-bytes" = u64,
                description = "How many bytes came before these and are not kept"))),
        (status = 404, body = ErrorBody)))]
pub(crate) async fn logs(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<impl IntoResponse, Failure> {
    let log = app.engine.console_log(&id)?;
    Ok((BYTES, [(MISSING_BYTES, log.missing.to_string())], log.bytes))
}

/// The header that says how many bytes of a console are missing before the body.
const MISSING_BYTES: HeaderName = HeaderName::from_static(MISSING_BYTES_HEADER);

/// Headers of a body that the guest determines: no browser may take it for something else.
pub(super) const BYTES: [(HeaderName, &str); 2] =
    [(CONTENT_TYPE, "application/octet-stream"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
