//! What E2B's agent in the guest would answer: calls about programs and files of one sandbox, and
//! addresses of files. The sandbox is there and runs; here it is asked whether the client may.

pub(crate) mod at;
mod download;
mod entry;
pub(crate) mod files;
mod filesystem;
mod input;
mod metadata;
pub(crate) mod place;
mod process;
mod said;
mod unread;
mod upload;
mod watch;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use forkd_types::SandboxId;

use self::at::At;
use crate::connect::{answered, question, streamed};
use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Answers a request for a sandbox that runs.
pub(crate) async fn answer(at: At, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/health" {
        return StatusCode::NO_CONTENT.into_response();
    }
    let has_token = has_token(&at.shared, &at.id, request.headers());
    if path == "/files" {
        return files::answer(at, request, has_token).await;
    }
    if !has_token {
        return no_token().into_call_response();
    }
    if request.method() != Method::POST {
        return unknown(&request);
    }
    call(at, &path, request).await
}

/// Whether a request has the token that opens this sandbox.
pub(crate) fn has_token(shared: &Shared, id: &SandboxId, headers: &HeaderMap) -> bool {
    let token = headers.get("x-access-token");
    token.is_some_and(|token| shared.secret.opens(id, token.as_bytes()))
}

/// A request has not the token that opens this sandbox.
pub(crate) fn no_token() -> Failure {
    let text = "the X-Access-Token is missing or not that of this sandbox";
    Failure::new(Kind::Unauthenticated, text)
}

fn unknown(request: &Request) -> Response {
    let shown: String = request.uri().path().chars().take(80).collect();
    let text = format!("forkd does not do {} {shown}", request.method());
    Failure::new(Kind::Unimplemented, text).into_call_response()
}

async fn call(at: At, path: &str, request: Request) -> Response {
    /// A call whose answer is one message.
    macro_rules! once {
        ($work:expr) => {{
            let (parts, body) = request.into_parts();
            let message = question(&parts.headers, body).await;
            answered(async { $work(&at, &parts.headers, message?).await }.await)
        }};
    }
    /// A call whose answer is a stream.
    macro_rules! stream {
        ($work:expr) => {{
            let (parts, body) = request.into_parts();
            let message = question(&parts.headers, body).await;
            streamed(async { $work(&at, &parts.headers, message?).await }.await)
        }};
    }
    match path {
        "/process.Process/Start" => stream!(process::start),
        "/process.Process/Connect" => stream!(process::connect),
        "/process.Process/List" => once!(process::list),
        "/process.Process/SendInput" => once!(input::send),
        "/process.Process/StreamInput" => input::stream(at, request).await,
        "/process.Process/CloseStdin" => once!(input::close),
        "/process.Process/SendSignal" => once!(input::signal),
        "/process.Process/Update" => once!(input::update),
        "/filesystem.Filesystem/Stat" => once!(filesystem::stat),
        "/filesystem.Filesystem/ListDir" => once!(filesystem::list),
        "/filesystem.Filesystem/MakeDir" => once!(filesystem::make),
        "/filesystem.Filesystem/Move" => once!(filesystem::rename),
        "/filesystem.Filesystem/Remove" => once!(filesystem::remove),
        "/filesystem.Filesystem/WatchDir" => stream!(watch::follow),
        "/filesystem.Filesystem/CreateWatcher" => once!(watch::create),
        "/filesystem.Filesystem/GetWatcherEvents" => once!(watch::events),
        "/filesystem.Filesystem/RemoveWatcher" => once!(watch::remove),
        _ => unknown(&request),
    }
}
