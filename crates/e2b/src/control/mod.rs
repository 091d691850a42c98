//! The control interface: sandboxes are made, listed, ended, forked, paused and kept as snapshots.

mod asked;
mod create;
#[cfg(test)]
pub(crate) mod described;
mod fork;
mod life;
mod list;
mod network;
pub(crate) mod repeat;
mod shown;
mod snapshots;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::routing::{MethodFilter, MethodRouter, any, on};

use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Where clients name builds. A snapshot may be called so, and must not be removed in their place.
const TAGS: &str = "/templates/tags";

/// A route: all there are, and all that the document describes.
pub(crate) struct Route {
    /// The handler answers it alone.
    #[cfg_attr(not(test), expect(dead_code, reason = "the document is made of it"))]
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
}

macro_rules! route {
    ($method:ident, $path:literal, $handler:expr) => {
        Route {
            method: stringify!($method),
            path: $path,
            handler: || on(MethodFilter::$method, $handler),
        }
    };
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    route!(POST, "/sandboxes", create::create),
    route!(POST, "/v2/sandboxes", create::create),
    route!(GET, "/sandboxes", list::list),
    route!(GET, "/v2/sandboxes", list::list),
    route!(GET, "/sandboxes/{id}", life::detail),
    route!(DELETE, "/sandboxes/{id}", life::kill),
    route!(POST, "/sandboxes/{id}/timeout", life::set_timeout),
    route!(POST, "/sandboxes/{id}/refreshes", life::refresh),
    route!(POST, "/sandboxes/{id}/connect", life::connect),
    route!(POST, "/v2/sandboxes/{id}/connect", life::connect),
    route!(POST, "/sandboxes/{id}/resume", life::resume),
    route!(POST, "/sandboxes/{id}/pause", life::pause),
    route!(GET, "/sandboxes/{id}/metrics", life::metrics),
    route!(PUT, "/sandboxes/{id}/network", network::replace),
    route!(POST, "/sandboxes/{id}/fork", fork::fork),
    route!(POST, "/sandboxes/{id}/snapshots", snapshots::create),
    route!(GET, "/snapshots", snapshots::list),
    route!(DELETE, "/templates/{id}", snapshots::remove),
    route!(GET, "/templates/aliases/{id}", snapshots::alias),
    route!(GET, "/health", health),
];

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let routes = ROUTES
        .iter()
        .fold(Router::new(), |router, route| router.route(route.path, (route.handler)()));
    routes
        .route(TAGS, any(unknown_route))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_route)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

/// Whether anybody is there.
async fn health() {}

/// What forkd does not do at all, by the first word of a path, and what does it instead.
const NOT_DONE: [(&str, &str); 4] = [
    ("templates", "build templates with `forkd template build` or `forkd build`"),
    ("volumes", "it has no volumes; a snapshot keeps files for other sandboxes"),
    ("secrets", "keep keys with `forkd secret`"),
    ("teams", "it has no teams"),
];

/// Not 404: clients take that for "there is none", and tell their user so.
async fn unknown_route(request: Request) -> Failure {
    let path: String = request.uri().path().chars().take(80).collect();
    let mut words = path.split('/').filter(|word| !matches!(*word, "" | "v2" | "v3"));
    let first = words.next().unwrap_or_default();
    let instead = NOT_DONE.iter().find(|(word, _)| *word == first);
    let instead = instead.map_or_else(String::new, |(_, instead)| format!(": {instead}"));
    let text = format!("forkd does not do {} {path}{instead}", request.method());
    Failure::new(Kind::Unimplemented, text)
}
