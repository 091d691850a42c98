//! Snapshots: list, build, describe, remove.

use axum::Json;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use forkd_api::{
    CheckedImage, CompactSnapshot, CreateSnapshot, ErrorBody, FieldError, Snapshot, SnapshotInfo,
};
use forkd_engine::{DeletePolicy, TemplateImage, TemplateRequest};
use serde::Deserialize;
use utoipa::IntoParams;

use super::build;
use crate::app::{App, to_the_end};
use crate::extract::{JsonBody, Query, SnapshotPath};
use crate::failure::Failure;
use crate::header_list::words;

/// Lists all snapshots, whatever their status.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots",
    responses((status = 200, body = Vec<Snapshot>), (status = 500, body = ErrorBody)))]
pub(crate) async fn list(app: App) -> Json<Vec<Snapshot>> {
    Json(app.engine.snapshots().into_iter().map(|snapshot| app.snapshot(snapshot)).collect())
}

/// Builds a template: boots an image, warms it and freezes it.
///
/// With `Accept: application/x-ndjson` the answer is a stream with the status 200: one
/// `BuildEvent` a line, the last of which is `snapshot` or `error`. With `wait: false` the answer
/// comes at once, with 202. In every case the build is an operation, which goes on when the client
/// goes away, and of which nothing is left when it is cancelled.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", request_body = CreateSnapshot,
    responses((status = 200, body = String, content_type = "application/x-ndjson",
            description = "For `Accept: application/x-ndjson`: a `BuildEvent` a line"),
        (status = 201, body = Snapshot),
        (status = 202, body = Snapshot, description = "The template is being built"),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 403, body = ErrorBody, description = "Only an admin may"),
        (status = 404, body = ErrorBody, description = "No such image"),
        (status = 409, body = ErrorBody, description = "The tag is taken, or it was cancelled"),
        (status = 422, body = ErrorBody, description = "The warm-up failed"),
        (status = 502, body = ErrorBody,
            description = "The guest did not come up, or an OCI image cannot be had"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn create(
    app: App,
    headers: HeaderMap,
    JsonBody(body): JsonBody<CreateSnapshot>,
) -> Result<Response, Failure> {
    let checked = body.check()?;
    let request = TemplateRequest {
        tag: app.tag(checked.tag),
        image: match checked.image {
            CheckedImage::Named(name) => TemplateImage::Named(name),
            CheckedImage::Reference(reference) => TemplateImage::Reference(reference),
        },
        size: checked.size,
        cpu: checked.cpu,
        warm: body.warm,
        shared: body.shared,
        private: body.private,
    };
    if accepts_stream(&headers) {
        return Ok(build::streamed(app, request));
    }
    let (status, snapshot) = if body.wait {
        (StatusCode::CREATED, build::plain(app.engine.clone(), request).await?)
    } else {
        (StatusCode::ACCEPTED, build::begun(&app.engine, request)?)
    };
    Ok((status, Json(app.snapshot(snapshot))).into_response())
}

fn accepts_stream(headers: &HeaderMap) -> bool {
    words(headers, &ACCEPT)
        .any(|kind| kind.split(';').next().unwrap_or_default().trim() == build::STREAM_TYPE)
}

/// Tells of one snapshot and its place among others.
#[utoipa::path(get, path = "/v1/snapshots/{tag}/info", tag = "snapshots",
    params(("tag" = String, Path, description = "The snapshot's tag")),
    responses((status = 200, body = SnapshotInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn info(
    app: App,
    SnapshotPath(name): SnapshotPath,
) -> Result<Json<SnapshotInfo>, Failure> {
    let tag = app.tag(name);
    let snapshot = app.engine.snapshot(&tag)?;
    let ancestors = app.engine.ancestors_of(snapshot.parent_tag.clone());
    Ok(Json(SnapshotInfo {
        chain_depth: snapshot.chain_depth,
        ancestors: ancestors.iter().map(|tag| app.name(tag)).collect(),
        dependents: app.engine.dependents(&tag).names(app.engine.caller().owner()),
        memory_layer_bytes: snapshot.memory_layer.get(),
        snapshot: app.snapshot(snapshot),
    }))
}

/// Makes a snapshot of the same state that depends on no other.
///
/// Its memory is one layer and its disk one overlay; it has no parent. The original stays and can
/// be removed afterwards. The answer comes when the new snapshot is ready; with `wait: false` at
/// once, with 202. It is an operation, which goes on when the client goes away.
#[utoipa::path(post, path = "/v1/snapshots/{tag}/compact", tag = "snapshots",
    params(("tag" = String, Path, description = "The snapshot's tag")),
    request_body = CompactSnapshot,
    responses((status = 201, body = Snapshot),
        (status = 202, body = Snapshot, description = "The snapshot is being written"),
        (status = 400, body = ErrorBody, description = "`to` is missing or no tag"),
        (status = 404, body = ErrorBody, description = "No such snapshot"),
        (status = 409, body = ErrorBody,
            description = "The snapshot is not ready or damaged, the tag `to` is taken, or it was \
                cancelled"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn compact(
    app: App,
    SnapshotPath(name): SnapshotPath,
    JsonBody(body): JsonBody<CompactSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), Failure> {
    let (tag, to) = (app.tag(name), app.tag(body.check()?));
    if !body.wait {
        let begun = app.engine.begin_compact(&tag, &to)?;
        return Ok((StatusCode::ACCEPTED, Json(app.snapshot(begun.snapshot))));
    }
    let engine = app.engine.clone();
    let made = to_the_end(async move { engine.compact_snapshot(&tag, &to).await }).await?;
    Ok((StatusCode::CREATED, Json(app.snapshot(made))))
}

/// What to do with what depends on a snapshot.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveQuery {
    /// Remove dependent sandboxes and snapshots too.
    #[serde(default)]
    cascade: bool,
    /// Remove it alone, although others depend on it: they keep working, because what they need
    /// of it stays. Excludes `cascade`.
    #[serde(default)]
    force: bool,
}

impl RemoveQuery {
    fn policy(&self) -> Result<DeletePolicy, FieldError> {
        match (self.cascade, self.force) {
            (false, false) => Ok(DeletePolicy::Refuse),
            (true, false) => Ok(DeletePolicy::Cascade),
            (false, true) => Ok(DeletePolicy::Force),
            (true, true) => Err(FieldError::new("force", "cannot be asked for with `cascade`")),
        }
    }
}

/// Removes a snapshot.
#[utoipa::path(delete, path = "/v1/snapshots/{tag}", tag = "snapshots",
    params(("tag" = String, Path, description = "The snapshot's tag"), RemoveQuery),
    responses((status = 204), (status = 404, body = ErrorBody),
        (status = 400, body = ErrorBody, description = "`cascade` and `force` at once"),
        (status = 409, body = ErrorBody,
            description = "Others depend on it; the error names them")))]
pub(crate) async fn remove(
    app: App,
    SnapshotPath(name): SnapshotPath,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Failure> {
    let policy = query.policy()?;
    let tag = app.tag(name);
    to_the_end(async move { app.engine.delete_snapshot(&tag, policy).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cascade_and_force_are_two_things_and_not_both() {
        let policy = |cascade, force| RemoveQuery { cascade, force }.policy();
        assert_eq!(policy(false, false), Ok(DeletePolicy::Refuse));
        assert_eq!(policy(true, false), Ok(DeletePolicy::Cascade));
        assert_eq!(policy(false, true), Ok(DeletePolicy::Force));
        assert_eq!(policy(true, true).unwrap_err().field, "force");
    }

    #[test]
    fn a_stream_is_given_only_to_those_who_ask_for_it() {
        let accepts = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, value.parse().unwrap());
            accepts_stream(&headers)
        };
        assert!(accepts("application/x-ndjson"));
        assert!(accepts("application/json, application/x-ndjson;q=0.9"));
        assert!(!accepts("*/*") && !accepts("application/json"));
        assert!(!accepts_stream(&HeaderMap::new()));
    }
}
