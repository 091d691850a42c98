//! The control interface: sandboxes are made, listed, ended, forked, paused and kept as snapshots.

mod asked;
mod create;
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
use axum::routing::{any, delete, get, post, put};

use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Where clients name builds. A snapshot may be called so, and must not be removed in their place.
const TAGS: &str = "/templates/tags";

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let create = || post(create::create);
    let listing = get(list::list);
    Router::new()
        .route("/sandboxes", create().merge(listing.clone()))
        .route("/v2/sandboxes", create().merge(listing))
        .route("/sandboxes/{id}", get(life::detail).delete(life::kill))
        .route("/sandboxes/{id}/timeout", post(life::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refresh))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/resume", post(life::connect))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/metrics", get(life::metrics))
        .route("/sandboxes/{id}/network", put(network::replace))
        .route("/sandboxes/{id}/fork", post(fork::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/templates/{id}", delete(snapshots::remove))
        .route("/templates/aliases/{id}", get(snapshots::alias))
        .route(TAGS, any(unknown_route))
        .route("/health", get(|| async { "" }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_route)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

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
