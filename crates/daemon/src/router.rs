//! Which handler answers which route, and what surrounds every request.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use forkd_api::ErrorCode;
use forkd_types::limit;
use tower_http::timeout::TimeoutBody;
use tracing::Instrument as _;
use tracing::field::Empty;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{self, Gate, RequestId};
use crate::app::Shared;
use crate::failure::Failure;
use crate::handler::{
    artifacts, branch, command, daemon, events, files, hub, network, operations, ports,
    private_networks, processes, sandboxes, secrets, snapshots,
};

/// Under this name an answer tells the id by which the daemon's log knows the request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest wait for the next piece of a request's body.
const BODY_IDLE_DEADLINE: Duration = Duration::from_secs(30);
/// The same for an import: an export reads all of its parts before its first byte, and may come
/// through a pipe.
const IMPORT_IDLE_DEADLINE: Duration = Duration::from_secs(15 * 60);

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
        forkd_api::LostEvents,
        forkd_api::OutputEvent,
        forkd_types::EventType
    ))
)]
struct Document;

fn documented_routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(daemon::healthz))
        .routes(routes!(daemon::version))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::images))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::remove))
        .routes(routes!(snapshots::info))
        .routes(routes!(snapshots::compact))
        .routes(routes!(artifacts::export))
        .routes(routes!(artifacts::import))
        .routes(routes!(artifacts::push))
        .routes(routes!(artifacts::pull))
        .routes(routes!(hub::snapshot))
        .routes(routes!(hub::search))
        .routes(routes!(artifacts::keys))
        .routes(routes!(artifacts::trust, artifacts::forget))
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::one, sandboxes::remove))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(sandboxes::rollback))
        .routes(routes!(network::policy, network::set_policy))
        .routes(routes!(network::log))
        .routes(routes!(ports::list))
        .routes(routes!(ports::connect))
        .routes(routes!(ports::issue_token, ports::revoke_tokens))
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::set, secrets::remove))
        .routes(routes!(private_networks::list, private_networks::create))
        .routes(routes!(private_networks::one, private_networks::remove))
        .routes(routes!(private_networks::join, private_networks::leave))
        .routes(routes!(branch::branch))
        .routes(routes!(command::exec))
        .routes(routes!(command::eval))
        .routes(routes!(command::ping))
        .routes(routes!(command::logs))
        .routes(routes!(operations::list))
        .routes(routes!(operations::one))
        .routes(routes!(operations::wait))
        .routes(routes!(operations::cancel))
        .routes(routes!(events::follow))
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

/// All routes, behind `gate`.
pub(crate) fn router(app: Shared, gate: Gate) -> Router {
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
        .layer(middleware::from_fn(bound_silence))
        .layer(middleware::from_fn_with_state(gate, access::admit))
        .layer(middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// A client that stays silent in the middle of a body does not keep its request for ever.
async fn bound_silence(request: Request, next: Next) -> Response {
    let deadline = match request.uri().path() {
        "/v1/artifacts" => IMPORT_IDLE_DEADLINE,
        _ => BODY_IDLE_DEADLINE,
    };
    next.run(request.map(|body| Body::new(TimeoutBody::new(deadline, body)))).await
}

async fn unknown_route(request: Request) -> Failure {
    Failure::new(ErrorCode::RouteNotFound, format!("there is no route {}", request.uri().path()))
}

async fn unknown_method(request: Request) -> Failure {
    let (method, path) = (request.method(), request.uri().path());
    Failure::new(ErrorCode::MethodNotAllowed, format!("{path} does not answer {method}"))
}

/// Gives the request an id, a span and its place in the metrics.
async fn observe(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let id = format!("req-{:016x}", getrandom::u64().unwrap_or_default());
    request.extensions_mut().insert(RequestId(id.clone()));
    let account = app.bodies.account();
    request.extensions_mut().insert(account.clone());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = request.uri().path();
    // The extractors of the path fill in what it is about.
    let span = tracing::info_span!(
        "request",
        id,
        %method,
        path,
        sandbox = Empty,
        snapshot = Empty,
        operation = Empty
    );
    let started = Instant::now();
    async move {
        let mut response = next.run(request).await;
        // What the body brought is in use until here.
        drop(account);
        let status = response.status().as_u16();
        let route = route.as_deref().unwrap_or("none");
        let error = response.extensions().get::<ErrorCode>().copied();
        app.metrics.answered(method_label(method.as_str()), route, status, error);
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(committed == current, "run `make generate` and commit the change");
    }

    #[test]
    fn the_bounds_in_the_document_are_the_limits() {
        let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
        let children = u64::from(limit::CHILDREN_PER_REQUEST_MAX);
        let (life, command) = (limit::LIFETIME_MAX.as_secs(), limit::EXEC_TIMEOUT_MAX.as_secs());
        let side = u64::from(limit::TERMINAL_SIDE_MAX);
        for (schema, field, least, most) in [
            ("BranchRequest", "n", 0, children),
            ("CreateSandboxes", "n", 1, children),
            (
                "CreateSandboxes",
                "memory_limit_mib",
                limit::MEMORY_LIMIT_MIB_MIN,
                limit::MEMORY_LIMIT_MIB_MAX,
            ),
            ("CreateSandboxes", "ttl_secs", 1, life),
            ("CreateSandboxes", "idle_timeout_secs", 1, life),
            ("ExecRequest", "timeout_secs", 1, command),
            ("EvalRequest", "timeout_secs", 1, command),
            ("CreateProcess", "timeout_secs", 1, command),
            ("TtySize", "rows", 1, side),
            ("TtySize", "cols", 1, side),
        ] {
            let bounds = &document["components"]["schemas"][schema]["properties"][field];
            let said = (bounds["minimum"].as_u64(), bounds["maximum"].as_u64());
            assert_eq!(said, (Some(least), Some(most)), "{schema}.{field}");
        }
        let wait = "/v1/sandboxes/{id}/processes/{process}/wait";
        let parameters = document["paths"][wait]["get"]["parameters"].as_array().unwrap();
        let timeout = parameters.iter().find(|p| p["name"] == "timeout_secs").unwrap();
        let longest = limit::PROCESS_WAIT_MAX.as_secs();
        assert_eq!(timeout["schema"]["maximum"].as_u64(), Some(longest));
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
