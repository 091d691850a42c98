//! The control interface: sandboxes are made, listed, ended, forked, paused and kept as snapshots.

mod asked;
mod create;
mod fork;
mod life;
mod list;
mod network;
mod shown;
mod snapshots;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::routing::{delete, get, post, put};

use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;

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
        .route("/health", get(|| async { "" }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_route)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

async fn unknown_route(request: Request) -> Failure {
    let shown: String = request.uri().path().chars().take(80).collect();
    let text = format!("forkd does not do {} {shown}", request.method());
    Failure::new(Kind::NotFound, text)
}
