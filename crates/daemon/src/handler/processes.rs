//! Background processes of a sandbox: start, follow, feed, signal, remove.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::response::sse::Event;
use forkd_api::{CreateProcess, ErrorBody, FieldError, Process, SignalRequest, TtySize};
use forkd_engine::guest::{self, Audience, InputPiece, ProcessInput, ProcessRequest, TerminalSize};
use forkd_types::limit;
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::sse;
use crate::app::App;
use crate::convert;
use crate::extract::{JsonBody, ProcessPath, ProcessWords, Query, RawBody, SandboxPath};
use crate::failure::Failure;

/// Starts a program in the background of a sandbox.
///
/// It goes on whether or not somebody reads its output. A child of a branch does not inherit the
/// list of processes: there the programs run on, but what they write is discarded.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = CreateProcess,
    responses((status = 201, body = Process),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody,
            description = "The sandbox does not run, or has too many running processes"),
        (status = 422, body = ErrorBody, description = "The program could not be started"),
        (status = 504, body = ErrorBody, description = "The guest agent does not answer")))]
pub(crate) async fn create(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<CreateProcess>,
) -> Result<(StatusCode, Json<Process>), Failure> {
    let timeout = body.check()?;
    let request = ProcessRequest {
        args: body.args,
        env: body.env.into_iter().collect(),
        cwd: body.cwd,
        user: body.user,
        input: if body.stdin { ProcessInput::Open } else { ProcessInput::Empty },
        timeout,
        terminal: body.tty.map(terminal_size),
        audience: if body.hold_output { Audience::Expected } else { Audience::Unknown },
        note: None,
    };
    let process = app.engine.start_process(&id, request).await?;
    Ok((StatusCode::CREATED, Json(convert::process(process))))
}

/// Lists the background processes of a sandbox, oldest first: those that run and the last of those
/// that have ended, 64 in all.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes", tag = "processes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = Vec<Process>),
        (status = 404, body = ErrorBody, description = "No such sandbox")))]
pub(crate) async fn list(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<Json<Vec<Process>>, Failure> {
    let processes = app.engine.processes(&id).await?;
    Ok(Json(processes.into_iter().map(convert::process).collect()))
}

/// Tells of one background process.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}", tag = "processes",
    params(ProcessWords),
    responses((status = 200, body = Process),
        (status = 404, body = ErrorBody, description = "No such sandbox or process")))]
pub(crate) async fn one(app: App, path: ProcessPath) -> Result<Json<Process>, Failure> {
    Ok(Json(convert::process(app.engine.process(&path.sandbox, &path.process).await?)))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// After so many seconds the answer comes although the process still runs. At most 600.
    #[serde(default = "wait_default")]
    #[param(minimum = 0, maximum = 600)]
    timeout_secs: u64,
}

const fn wait_default() -> u64 {
    30
}

/// Waits for a background process to end. The answer's `state` may still be `running`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/wait", tag = "processes",
    params(ProcessWords, WaitQuery),
    responses((status = 200, body = Process),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or process")))]
pub(crate) async fn wait(
    app: App,
    path: ProcessPath,
    Query(query): Query<WaitQuery>,
) -> Result<Json<Process>, Failure> {
    let within = Duration::from_secs(query.timeout_secs);
    if within > limit::PROCESS_WAIT_MAX {
        let problem = format!("must be at most {}", limit::PROCESS_WAIT_MAX.as_secs());
        return Err(FieldError::new("timeout_secs", problem).into());
    }
    let process = app.engine.wait_process(&path.sandbox, &path.process, within).await?;
    Ok(Json(convert::process(process)))
}

/// Kills a background process if it runs, and forgets it.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/processes/{process}", tag = "processes",
    params(ProcessWords),
    responses((status = 204),
        (status = 404, body = ErrorBody, description = "No such sandbox or process")))]
pub(crate) async fn remove(app: App, path: ProcessPath) -> Result<StatusCode, Failure> {
    app.engine.remove_process(&path.sandbox, &path.process).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// From where to read.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutputQuery {
    /// Offset of the first byte wanted; the oldest that is kept when absent. The header
    /// `Last-Event-ID` of a client that comes back counts more.
    #[serde(default)]
    from: Option<u64>,
}

/// Follows the output of a background process as server-sent events.
///
/// `stdout` and `stderr` carry `{"text"}` or, where the bytes are not UTF-8, `{"base64"}`; their
/// `id` is the offset after them, with which a client goes on after a broken connection. `lost`
/// (`{"bytes"}`) tells of bytes that were asked for and are no longer kept. The last event is
/// `exit` (`{"exit_code", "signal", "timed_out"}`) or, when the sandbox ended, `gone`
/// (`{"reason"}`).
///
/// 1 MiB of output is kept. While a client reads, nothing is dropped that it has not read: the
/// program is held back when the client is slow. Without a client the oldest output is dropped.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/output", tag = "processes",
    params(ProcessWords, OutputQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Go on after this event")),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = 400, body = ErrorBody, description = "The offset is past the end"),
        (status = 404, body = ErrorBody, description = "No such sandbox or process")))]
pub(crate) async fn output(
    app: App,
    path: ProcessPath,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let from = sse::last_event_id(&headers)?.or(query.from);
    let reader = app.engine.process_output(&path.sandbox, &path.process, from).await?;
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((output_event(event), reader))
    });
    Ok(sse::answer(events))
}

fn output_event(event: guest::OutputEvent) -> Event {
    let to = match &event {
        guest::OutputEvent::Data { to, .. } | guest::OutputEvent::Lost { to, .. } => Some(*to),
        guest::OutputEvent::Ended(_) => None,
    };
    let event = sse::event(&convert::output_event(event));
    match to {
        Some(to) => event.id(to.to_string()),
        None => event,
    }
}

/// What comes after the input.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InputQuery {
    /// Nothing: the program finds the end of its input.
    #[serde(default)]
    eof: bool,
}

/// Sends input to a background process: all of it or, with an error, nothing.
///
/// An answer of success means that the input is on its way, not that the program has read it. When
/// the program does not read, the request waits up to 30 seconds for room.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/stdin", tag = "processes",
    params(ProcessWords, InputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204),
        (status = 404, body = ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = ErrorBody, description = "It has ended, or takes no input"),
        (status = 413, body = ErrorBody, description = "More than 8 MiB at once"),
        (status = 503, body = ErrorBody, description = "It has not read its earlier input")))]
pub(crate) async fn stdin(
    app: App,
    path: ProcessPath,
    Query(query): Query<InputQuery>,
    RawBody(data, _account): RawBody,
) -> Result<StatusCode, Failure> {
    let piece = InputPiece { data, eof: query.eof };
    app.engine.give_process_input(&path.sandbox, &path.process, piece).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to the process group of a background process.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/signal", tag = "processes",
    params(ProcessWords),
    request_body = SignalRequest,
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = ErrorBody, description = "It has ended")))]
pub(crate) async fn signal(
    app: App,
    path: ProcessPath,
    JsonBody(body): JsonBody<SignalRequest>,
) -> Result<StatusCode, Failure> {
    app.engine.signal_process(&path.sandbox, &path.process, body.check()?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the size of a background process's terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/resize", tag = "processes",
    params(ProcessWords),
    request_body = TtySize,
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or process"),
        (status = 409, body = ErrorBody, description = "It has ended, or has no terminal")))]
pub(crate) async fn resize(
    app: App,
    path: ProcessPath,
    JsonBody(body): JsonBody<TtySize>,
) -> Result<StatusCode, Failure> {
    body.check()?;
    app.engine.resize_process(&path.sandbox, &path.process, terminal_size(body)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn terminal_size(size: TtySize) -> TerminalSize {
    TerminalSize { rows: size.rows, cols: size.cols }
}
