//! What the daemon says of itself.

use std::time::Duration;

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use forkd_api::{ErrorBody, ErrorCode, Health, Image, Version};
use forkd_engine::EngineError;

use crate::app::App;
use crate::failure::Failure;
use crate::{convert, metrics};

/// Tells that the daemon answers.
#[utoipa::path(get, path = "/healthz", tag = "daemon", responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { ok: true })
}

/// Tells which daemon answers.
#[utoipa::path(get, path = "/version", tag = "daemon", responses((status = 200, body = Version)))]
pub(crate) async fn version(app: App) -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: "v1".to_owned(),
        accelerator: app.engine.accelerator().into(),
        security_boundary: app.engine.accelerator().is_security_boundary(),
        preview_url: app.previews().map(ToString::to_string),
        isolation: app.engine.isolation().into(),
    })
}

/// For looking at the memory of VMMs at one scrape.
const VMM_MEMORY_LOOK: Duration = Duration::from_millis(200);

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "daemon",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(app: App) -> Result<impl IntoResponse, Failure> {
    // They tell of what all owners do.
    if !app.engine.caller().is_admin() {
        return Err(EngineError::AdminOnly { what: "metrics of all owners" }.into());
    }
    let text = app.metrics.encode(&app.engine.usage(VMM_MEMORY_LOOK).await?);
    let text = text.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

/// Lists the images that templates can be built from.
#[utoipa::path(get, path = "/v1/images", tag = "images",
    responses((status = 200, body = Vec<Image>), (status = 500, body = ErrorBody)))]
pub(crate) async fn images(app: App) -> Json<Vec<Image>> {
    Json(app.engine.images().into_iter().map(convert::image).collect())
}
