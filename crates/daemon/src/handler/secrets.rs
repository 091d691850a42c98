//! Secrets: set, list, remove. Nothing here tells a value.

use axum::Json;
use axum::http::StatusCode;
use forkd_api::{ErrorBody, Secret};
use forkd_engine::SecretValue;

use crate::app::{App, to_the_end};
use crate::extract::{RawBody, SecretPath};
use crate::failure::Failure;

/// Lists the names of your secrets.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets",
    responses((status = 200, body = Vec<Secret>),
        (status = 500, body = ErrorBody, description = "They cannot be read")))]
pub(crate) async fn list(app: App) -> Result<Json<Vec<Secret>>, Failure> {
    let secrets = app.engine.secrets().await?.into_iter();
    let secret = |(name, set_at_unix)| Secret { name: String::from(name), set_at_unix };
    Ok(Json(secrets.map(secret).collect()))
}

/// Sets a secret of yours, or replaces its value. The body is the value: one line of ASCII.
///
/// Requests that come from now on have it, also on connections that are open.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "The secret's name")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "The name or the value is wrong"),
        (status = 413, body = ErrorBody, description = "The value is too large"),
        (status = 503, body = ErrorBody, description = "The gateway does not answer")))]
pub(crate) async fn set(
    app: App,
    SecretPath(name): SecretPath,
    RawBody(value, _account): RawBody,
) -> Result<StatusCode, Failure> {
    let name = name.map_err(|error| Failure::bad_request(format!("name: {error}")))?;
    let not_text = |_| Failure::bad_request("value: the value of a secret is ASCII".to_owned());
    let value = String::from_utf8(value).map_err(not_text)?;
    let value = SecretValue::try_from(value);
    let value = value.map_err(|error| Failure::bad_request(format!("value: {error}")))?;
    to_the_end(async move { app.engine.set_secret(name, value).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a secret of yours. Requests that need it fail from now on.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "The secret's name")),
    responses((status = 204), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "The gateway does not answer")))]
pub(crate) async fn remove(app: App, SecretPath(name): SecretPath) -> Result<StatusCode, Failure> {
    let name = name.map_err(SecretPath::not_found)?;
    to_the_end(async move { app.engine.remove_secret(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
