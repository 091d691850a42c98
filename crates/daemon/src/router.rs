//! Which handler answers which route, and what surrounds every request.

use std::net::IpAddr;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::HOST;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use forkd_api::ErrorCode;
use forkd_types::limit;
use tracing::Instrument as _;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::failure::Failure;
use crate::handler::{branch, command, daemon, files, processes, sandboxes, snapshots};

/// Under this name an answer tells the id by which the daemon's log knows the request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "forkd",
        description = "Sandboxes that can be branched while they run.",
        version = "v1",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(),
    ),
    components(schemas(
        forkd_api::BuildEvent,
        forkd_api::ErrorBody,
        forkd_api::FileChange,
        forkd_api::OutputEvent
    ))
)]
struct Document;

fn documented_routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(daemon::healthz))
        .routes(routes!(daemon::version))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::images))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::remove))
        .routes(routes!(snapshots::info))
        .routes(routes!(snapshots::compact))
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::one, sandboxes::remove))
        .routes(routes!(branch::branch))
        .routes(routes!(command::exec))
        .routes(routes!(command::eval))
        .routes(routes!(command::ping))
        .routes(routes!(command::logs))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::make_directory))
        .routes(routes!(files::watch))
        .routes(routes!(processes::list, processes::create))
        .routes(routes!(processes::one, processes::remove))
        .routes(routes!(processes::wait))
        .routes(routes!(processes::output))
        .routes(routes!(processes::stdin))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::resize))
}

/// The OpenAPI document of all routes.
///
/// # Panics
/// Never: the document consists of strings and numbers.
#[must_use]
pub fn openapi_json() -> String {
    let document = documented_routes().into_openapi();
    let mut text =
        document.to_pretty_json().expect("a document of strings and numbers is valid JSON");
    text.push('\n');
    text
}

/// All routes, for clients that the socket's permissions let in.
pub(crate) fn router(app: App) -> Router {
    let document = openapi_json();
    let (router, _) = documented_routes().split_for_parts();
    let serve_document = move || {
        let document = document.clone();
        async move { ([("content-type", "application/json")], document) }
    };
    router
        .route("/openapi.json", get(serve_document))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(limit::REQUEST_BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// The same for loopback TCP, where web browsers can reach us: a page whose name was made to
/// resolve to this machine comes under that name and is refused.
pub(crate) fn for_loopback(app: App) -> Router {
    router(app).layer(middleware::from_fn(only_loopback_hosts))
}

async fn unknown_route(request: Request) -> Failure {
    Failure::new(ErrorCode::RouteNotFound, format!("there is no route {}", request.uri().path()))
}

async fn unknown_method(request: Request) -> Failure {
    let (method, path) = (request.method(), request.uri().path());
    Failure::new(ErrorCode::MethodNotAllowed, format!("{path} does not answer {method}"))
}

/// Gives the request an id, a span and its place in the metrics.
async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let id = format!("req-{:016x}", getrandom::u64().unwrap_or_default());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = request.uri().path();
    let span = tracing::info_span!("request", id, %method, path);
    let started = Instant::now();
    async move {
        let mut response = next.run(request).await;
        let status = response.status().as_u16();
        let route = route.as_deref().unwrap_or("none");
        app.metrics.answered(method_label(method.as_str()), route, status);
        tracing::debug!(status, took = ?started.elapsed(), "answered");
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(REQUEST_ID, value);
        }
        response
    }
    .instrument(span)
    .await
}

/// A client chooses the word; the metrics keep those that exist.
fn method_label(method: &str) -> &str {
    match method {
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" => method,
        _ => "other",
    }
}

async fn only_loopback_hosts(request: Request, next: Next) -> Response {
    let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let host = header.or_else(|| request.uri().authority().map(|name| name.as_str()));
    match host {
        Some(host) if is_loopback_host(host) => next.run(request).await,
        _ => {
            let shown = host.unwrap_or("no name").chars().take(80).collect::<String>();
            let text = format!("the request came for the host `{shown}`, not for this machine");
            Failure::new(ErrorCode::HostRefused, text).into_response()
        }
    }
}

/// Whether `host`, with or without port, is a name of this machine that only this machine can use.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_are_accepted() {
        for good in ["localhost", "LOCALHOST:8889", "127.0.0.1:8889", "[::1]:8889", "[::1]"] {
            assert!(is_loopback_host(good), "{good}");
        }
        for bad in ["", "evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]:80"] {
            assert!(!is_loopback_host(bad), "{bad}");
        }
    }

    /// The committed document is what the routes say. `FORKD_UPDATE=1` writes it anew.
    #[test]
    fn the_committed_openapi_document_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/v1.json");
        let current = openapi_json();
        if std::env::var_os("FORKD_UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &current).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == current, "run the tests with FORKD_UPDATE=1 and commit the change");
    }

    #[test]
    fn every_documented_route_says_how_it_fails() {
        let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let statuses = operation["responses"].as_object().unwrap();
                let fails = statuses.keys().any(|status| !status.starts_with('2'));
                assert!(fails || !path.starts_with("/v1"), "{method} {path}");
            }
        }
    }
}
