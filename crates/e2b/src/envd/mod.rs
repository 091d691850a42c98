//! What E2B's agent in the guest would answer: calls about programs and files of one sandbox, and
//! addresses of files. The sandbox is there and runs; here it is asked whether the client may.

pub(crate) mod at;
#[cfg(test)]
pub(crate) mod described;
mod download;
mod entry;
pub(crate) mod files;
mod filesystem;
mod input;
mod metadata;
pub(crate) mod place;
mod process;
mod said;
mod token;
mod unread;
mod upload;
mod watch;

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;

use self::at::At;
pub(crate) use self::token::{has_token, no_token};
use crate::connect::{answered, question, streamed};
use crate::failure::{Failure, Kind};

/// A route: all there are, and all that the document describes.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    needs: Needs,
    answer: fn(At, Request) -> BoxFuture<'static, Response>,
}

/// What a client must have.
#[derive(PartialEq)]
enum Needs {
    /// Nothing, or the route sees to it.
    Nothing,
    /// The token of the sandbox.
    Token,
}

/// A route that sees to what its clients must have.
macro_rules! open {
    ($method:ident, $path:literal, $answer:expr) => {
        Route {
            method: stringify!($method),
            path: $path,
            needs: Needs::Nothing,
            answer: |at, request| Box::pin($answer(at, request)),
        }
    };
}

/// A call.
macro_rules! call {
    ($path:literal, $answer:expr) => {
        Route {
            method: "POST",
            path: $path,
            needs: Needs::Token,
            answer: |at, request| Box::pin($answer(at, request)),
        }
    };
}

/// A call whose answer is one message.
macro_rules! once {
    ($path:literal, $work:expr) => {
        call!($path, |at: At, request: Request| async move {
            let (parts, body) = request.into_parts();
            let message = question(&parts.headers, body).await;
            answered(async { $work(&at, &parts.headers, message?).await }.await)
        })
    };
}

/// A call whose answer is a stream.
macro_rules! stream {
    ($path:literal, $work:expr) => {
        call!($path, |at: At, request: Request| async move {
            let (parts, body) = request.into_parts();
            let message = question(&parts.headers, body).await;
            streamed(async { $work(&at, &parts.headers, message?).await }.await)
        })
    };
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    open!(GET, "/health", health),
    open!(GET, "/files", files::answer),
    open!(POST, "/files", files::answer),
    stream!("/process.Process/Start", process::start),
    stream!("/process.Process/Connect", process::connect),
    once!("/process.Process/List", process::list),
    once!("/process.Process/SendInput", input::send),
    call!("/process.Process/StreamInput", input::stream),
    once!("/process.Process/CloseStdin", input::close),
    once!("/process.Process/SendSignal", input::signal),
    once!("/process.Process/Update", input::update),
    once!("/filesystem.Filesystem/Stat", filesystem::stat),
    once!("/filesystem.Filesystem/ListDir", filesystem::list),
    once!("/filesystem.Filesystem/MakeDir", filesystem::make),
    once!("/filesystem.Filesystem/Move", filesystem::rename),
    once!("/filesystem.Filesystem/Remove", filesystem::remove),
    stream!("/filesystem.Filesystem/WatchDir", watch::follow),
    once!("/filesystem.Filesystem/CreateWatcher", watch::create),
    once!("/filesystem.Filesystem/GetWatcherEvents", watch::events),
    once!("/filesystem.Filesystem/RemoveWatcher", watch::remove),
];

/// Answers a request for a sandbox that runs.
pub(crate) async fn answer(at: At, request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    // What is asked for without its content is found as with it.
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let route = ROUTES.iter().find(|route| route.path == path && route.method == method.as_str());
    let is_open = route.is_some_and(|route| route.needs == Needs::Nothing);
    if !is_open && !has_token(&at.shared, &at.id, request.headers()) {
        return no_token().into_call_response();
    }
    match route {
        Some(route) => (route.answer)(at, request).await,
        None => unknown(&request),
    }
}

async fn health(_: At, _: Request) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

fn unknown(request: &Request) -> Response {
    let shown: String = request.uri().path().chars().take(80).collect();
    let text = format!("forkd does not do {} {shown}", request.method());
    Failure::new(Kind::Unimplemented, text).into_call_response()
}
