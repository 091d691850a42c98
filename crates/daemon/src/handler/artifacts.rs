//! Snapshots as files and in registries: export, import, push, pull, and whose are imported.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse as _, Response};
use forkd_api::{
    ErrorBody, Keys, PullSnapshot, PushSnapshot, PushedSnapshot, Snapshot, TrustKey, TrustedKey,
};
use forkd_engine::{ImportRequest, PublicKey, Pushed, Trust};
use forkd_types::TagName;
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::command::BYTES;
use crate::app::{App, to_the_end};
use crate::budget::BodyAccount;
use crate::extract::{JsonBody, Query, SnapshotPath};
use crate::failure::Failure;
use crate::upload::import_artifact;

/// Exports a snapshot as one file, which another daemon imports.
///
/// The file has all of the snapshot's memory and disk, and so every key and password that programs
/// in the sandbox had read. It is signed with this daemon's key. The answer begins when all parts
/// have been read once; an answer that is shorter than its `Content-Length` says is no artifact.
#[utoipa::path(get, path = "/v1/snapshots/{tag}/artifact", tag = "snapshots",
    params(("tag" = String, Path, description = "The snapshot's tag")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
        (status = 409, body = ErrorBody,
            description = "The snapshot is not ready or damaged, or the export was cancelled")))]
pub(crate) async fn export(
    app: App,
    SnapshotPath(name): SnapshotPath,
) -> Result<Response, Failure> {
    let exported = app.engine.export_snapshot(&app.tag(name)).await?;
    let pieces = stream::unfold(exported.pieces, |mut pieces| async move {
        pieces.recv().await.map(|piece| (piece, pieces))
    });
    let length = [(CONTENT_LENGTH, exported.bytes)];
    Ok((BYTES, length, Body::from_stream(pieces)).into_response())
}

/// How to import.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportQuery {
    /// Tag of the snapshot; by default the one that it had where it was exported.
    #[serde(default)]
    tag: Option<String>,
    /// Import it whoever has signed it. Only an admin may: the file's device state is input of a
    /// VMM of this host, and could be made to attack it.
    #[serde(default)]
    trust_once: bool,
}

/// Imports a snapshot from a file that a daemon has exported. The body is the file.
///
/// Before any memory is taken, the daemon compares the signature, the machine and the image. The
/// answer comes when the snapshot is ready. It is an operation.
#[utoipa::path(post, path = "/v1/artifacts", tag = "snapshots", params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Snapshot),
        (status = 400, body = ErrorBody, description = "`tag` is no tag"),
        (status = 403, body = ErrorBody,
            description = "The key is not trusted, or `trust_once` is not for you"),
        (status = 404, body = ErrorBody, description = "The image is not here"),
        (status = 409, body = ErrorBody,
            description = "The tag is taken, the machine or image differs, or it was cancelled"),
        (status = 422, body = ErrorBody, description = "It is no artifact, or is damaged"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn import(
    app: App,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<(StatusCode, Json<Snapshot>), Failure> {
    let wanted = import_request(&app, query.tag, query.trust_once)?;
    let account = request.extensions().get::<BodyAccount>().cloned();
    let engine = app.engine.clone();
    // Also when the client goes away once all of the body has come.
    let imported = to_the_end(import_artifact(engine, wanted, request.into_body(), account));
    Ok((StatusCode::CREATED, Json(app.snapshot(imported.await?))))
}

fn import_request(
    app: &App,
    tag: Option<String>,
    trust_once: bool,
) -> Result<ImportRequest, Failure> {
    let name = tag.map(|text| text.parse::<TagName>());
    let name = name.transpose().map_err(|error| Failure::bad_request(format!("tag: {error}")))?;
    let trust = if trust_once { Trust::Once } else { Trust::Known };
    Ok(ImportRequest { tag: name.map(|name| app.tag(name)), trust })
}

/// Puts a snapshot into a registry, where another daemon pulls it. Only an admin may.
///
/// The registry gets all of the snapshot's memory and disk, and so every key and password that
/// programs in the sandbox had read. The daemon uses the credentials that `docker login` keeps for
/// its user. Parts that the registry has are not sent. The answer comes when the registry has all.
/// It is an operation.
#[utoipa::path(post, path = "/v1/snapshots/{tag}/push", tag = "snapshots",
    params(("tag" = String, Path, description = "The snapshot's tag")),
    request_body = PushSnapshot,
    responses((status = 200, body = PushedSnapshot),
        (status = 400, body = ErrorBody, description = "The reference is wrong"),
        (status = 403, body = ErrorBody, description = "You are no admin"),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
        (status = 409, body = ErrorBody,
            description = "The snapshot is not ready or damaged, or the push was cancelled"),
        (status = 502, body = ErrorBody, description = "The registry does not take it")))]
pub(crate) async fn push(
    app: App,
    SnapshotPath(name): SnapshotPath,
    JsonBody(body): JsonBody<PushSnapshot>,
) -> Result<Json<PushedSnapshot>, Failure> {
    let (tag, engine) = (app.tag(name), app.engine.clone());
    let pushed = to_the_end(async move { engine.push_snapshot(&tag, &body.reference).await });
    let Pushed { reference, bytes, bytes_sent } = pushed.await?;
    Ok(Json(PushedSnapshot { reference, bytes, bytes_sent }))
}

/// Makes a snapshot of what a daemon has pushed to a registry. Only an admin may.
///
/// Before any memory is fetched, the daemon compares the signature, the machine and the image. The
/// answer comes when the snapshot is ready. It is an operation.
#[utoipa::path(post, path = "/v1/pulls", tag = "snapshots", request_body = PullSnapshot,
    responses((status = 201, body = Snapshot),
        (status = 400, body = ErrorBody, description = "The reference or `tag` is wrong"),
        (status = 403, body = ErrorBody,
            description = "The key is not trusted, or you are no admin"),
        (status = 404, body = ErrorBody, description = "The image is not here"),
        (status = 409, body = ErrorBody,
            description = "The tag is taken, the machine or image differs, or it was cancelled"),
        (status = 422, body = ErrorBody, description = "It is no snapshot, or is damaged"),
        (status = 502, body = ErrorBody, description = "The registry does not give it"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn pull(
    app: App,
    JsonBody(body): JsonBody<PullSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), Failure> {
    let wanted = import_request(&app, body.tag, body.trust_once)?;
    let engine = app.engine.clone();
    let pulled = to_the_end(async move { engine.pull_snapshot(&body.reference, wanted).await });
    Ok((StatusCode::CREATED, Json(app.snapshot(pulled.await?))))
}

/// Tells this daemon's key, and the keys that it trusts.
#[utoipa::path(get, path = "/v1/keys", tag = "snapshots",
    responses((status = 200, body = Keys),
        (status = 500, body = ErrorBody, description = "The key cannot be read")))]
pub(crate) async fn keys(app: App) -> Result<Json<Keys>, Failure> {
    let key = app.engine.signing_key().await?.to_string();
    let trusted = app.engine.trusted_keys().into_iter();
    let trusted = trusted.map(|(name, trusted)| TrustedKey {
        name,
        key: trusted.key.to_string(),
        trusted_at_unix: trusted.trusted_at_unix,
    });
    Ok(Json(Keys { key, trusted: trusted.collect() }))
}

/// Trusts a key from now on: what was signed with it is imported. Only an admin may.
#[utoipa::path(put, path = "/v1/keys/{name}", tag = "snapshots",
    params(("name" = String, Path, description = "What you call the key")),
    request_body = TrustKey,
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "The name or the key is wrong"),
        (status = 403, body = ErrorBody, description = "You are no admin")))]
pub(crate) async fn trust(
    app: App,
    Path(name): Path<String>,
    JsonBody(body): JsonBody<TrustKey>,
) -> Result<StatusCode, Failure> {
    let key = body.key.parse::<PublicKey>();
    let key = key.map_err(|error| Failure::bad_request(format!("key: {error}")))?;
    to_the_end(async move { app.engine.trust_key(name, key).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Trusts a key no more. Only an admin may. What was imported stays.
#[utoipa::path(delete, path = "/v1/keys/{name}", tag = "snapshots",
    params(("name" = String, Path, description = "What you call the key")),
    responses((status = 204),
        (status = 403, body = ErrorBody, description = "You are no admin"),
        (status = 404, body = ErrorBody, description = "No such key")))]
pub(crate) async fn forget(app: App, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    to_the_end(async move { app.engine.remove_key(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
