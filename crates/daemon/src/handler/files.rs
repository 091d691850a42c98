//! Files of a sandbox.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forkd_api::{ErrorBody, FieldError, FileEntry, check_user};
use forkd_engine::EngineError;
use forkd_engine::guest::{Depth, FileOwner, FileWrite, WithEntries};
use forkd_types::limit;
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::command::BYTES;
use super::sse;
use crate::app::{App, to_the_end};
use crate::budget::BodyAccount;
use crate::convert;
use crate::extract::{Query, SandboxPath};
use crate::failure::Failure;
use crate::upload::upload;

/// Which file or directory.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PathQuery {
    /// Absolute path in the sandbox.
    path: String,
}

/// Which file, and how large it may be.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadQuery {
    /// Absolute path in the sandbox.
    path: String,
    /// The file comes piece by piece, and may have so many bytes. When absent, it comes all at
    /// once, and may have 64 MiB.
    #[serde(default)]
    #[param(minimum = 1)]
    max_bytes: Option<u64>,
}

/// Which file, and how.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteQuery {
    /// Absolute path in the sandbox. Missing directories above it are created.
    path: String,
    /// Permission bits in octal, such as `0644`; those of an existing file stay when absent.
    #[serde(default)]
    mode: Option<String>,
    /// The user that the file and the new directories belong to, as `USER` or `USER:GROUP`: names
    /// of the guest or numbers. When absent, they belong to root, and an existing file stays whose
    /// it was.
    #[serde(default)]
    user: Option<String>,
}

/// Which directory, and whose.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MakeQuery {
    /// Absolute path in the sandbox.
    path: String,
    /// The user that new directories belong to, as `USER` or `USER:GROUP`; root when absent.
    #[serde(default)]
    user: Option<String>,
}

fn checked_owner(user: Option<String>) -> Result<Option<FileOwner>, FieldError> {
    check_user(user.as_deref())?;
    Ok(user.map(FileOwner::User))
}

fn checked_path(path: String) -> Result<String, FieldError> {
    if !path.starts_with('/') {
        return Err(FieldError::new("path", "must be absolute"));
    }
    if path.contains('\0') {
        return Err(FieldError::new("path", "must not contain a zero byte"));
    }
    Ok(path)
}

fn checked_mode(mode: Option<&str>) -> Result<Option<u32>, FieldError> {
    let wrong = || FieldError::new("mode", "must be octal permission bits, 0 to 7777");
    let Some(text) = mode else { return Ok(None) };
    if text.is_empty() || text.starts_with('+') {
        return Err(wrong());
    }
    let bits = u32::from_str_radix(text, 8).map_err(|_| wrong())?;
    if bits <= 0o7777 { Ok(Some(bits)) } else { Err(wrong()) }
}

/// Reads a file: at most 64 MiB at once, or up to 16 GiB piece by piece.
///
/// With `max_bytes` the answer begins before all of the file was read. If the rest cannot be read,
/// or is larger than allowed, the connection breaks off.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), ReadQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or file"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "It cannot be read, or is too large")))]
pub(crate) async fn read(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<ReadQuery>,
) -> Result<Response, Failure> {
    let path = checked_path(query.path)?;
    let Some(most) = query.max_bytes else {
        return Ok((BYTES, app.engine.read_file(&id, &path).await?).into_response());
    };
    if !(1..=limit::DOWNLOAD_BYTES_MAX).contains(&most) {
        let wrong = format!("must be 1 to {}", limit::DOWNLOAD_BYTES_MAX);
        return Err(FieldError::new("max_bytes", wrong).into());
    }
    let file = app.engine.open_file(&id, &path, most).await?;
    let pieces = stream::try_unfold(file, |mut file| async move {
        Ok::<_, EngineError>(file.next().await?.map(|piece| (Bytes::from(piece), file)))
    });
    Ok((BYTES, Body::from_stream(pieces)).into_response())
}

/// Writes a file of at most 16 GiB. A regular file is replaced in one step or not at all.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 413, body = ErrorBody, description = "The file is too large"),
        (status = 422, body = ErrorBody, description = "It cannot be written")))]
pub(crate) async fn write(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> Result<StatusCode, Failure> {
    let path = checked_path(query.path)?;
    let mode = checked_mode(query.mode.as_deref())?;
    let owner = checked_owner(query.user)?;
    let file = FileWrite { mode, create_parents: true, owner, ..FileWrite::new(path) };
    let account = request.extensions().get::<BodyAccount>().cloned();
    // Also when the client goes away once all of the body has come.
    to_the_end(upload(app, id, file, request.into_body(), account)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which file or directory, and how far.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeQuery {
    /// Absolute path in the sandbox.
    path: String,
    /// With all that is below a directory.
    #[serde(default)]
    recursive: bool,
}

impl TreeQuery {
    fn depth(&self) -> Depth {
        if self.recursive { Depth::Recursive } else { Depth::Itself }
    }
}

/// Removes a file, a symbolic link or a directory. A directory that is not empty needs
/// `recursive`.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), TreeQuery),
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or file"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "It cannot be removed")))]
pub(crate) async fn remove(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<TreeQuery>,
) -> Result<StatusCode, Failure> {
    let depth = query.depth();
    let path = checked_path(query.path)?;
    to_the_end(async move { app.engine.remove_file(&id, &path, depth).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists what is in a directory, by name.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), PathQuery),
    responses((status = 200, body = Vec<FileEntry>),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or directory"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "It is no directory")))]
pub(crate) async fn list(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<PathQuery>,
) -> Result<Json<Vec<FileEntry>>, Failure> {
    let entries = app.engine.list_files(&id, &checked_path(query.path)?).await?;
    Ok(Json(entries.into_iter().map(convert::file_entry).collect()))
}

/// Tells what a path is. Of a symbolic link it tells of the link.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), PathQuery),
    responses((status = 200, body = FileEntry),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or file"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run")))]
pub(crate) async fn stat(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<PathQuery>,
) -> Result<Json<FileEntry>, Failure> {
    let entry = app.engine.stat_file(&id, &checked_path(query.path)?).await?;
    Ok(Json(convert::file_entry(entry)))
}

/// Creates a directory, and missing ones above it. One that is there is fine.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), MakeQuery),
    responses((status = 204),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "It cannot be created")))]
pub(crate) async fn make_directory(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<MakeQuery>,
) -> Result<StatusCode, Failure> {
    let path = checked_path(query.path)?;
    let owner = checked_owner(query.user)?;
    to_the_end(async move { app.engine.make_directory(&id, &path, owner).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Follows changes to a file, or in a directory, as server-sent events.
///
/// `created`, `modified` and `removed` carry `{"path"}`, `renamed` carries `{"path", "from"}`. When
/// the answer begins the watch is set: each change from then on is told, some of them twice. `lost`
/// (`{}`) stands for changes that were too many at once. The last event is `gone` (`{"reason"}`).
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), TreeQuery),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 404, body = ErrorBody, description = "No such sandbox or path"),
        (status = 409, body = ErrorBody, description = "The sandbox does not run"),
        (status = 422, body = ErrorBody, description = "It cannot be watched")))]
pub(crate) async fn watch(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<TreeQuery>,
) -> Result<Response, Failure> {
    let depth = query.depth();
    let path = checked_path(query.path)?;
    let watch = app.engine.watch_files(&id, &path, depth, WithEntries::No).await?;
    let changes = stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        let change = watch.next().await.map(|told| told.map(|told| told.change));
        let goes_on = matches!(change, Ok(Some(_)));
        let event = sse::event(&convert::file_change(change));
        Some((event, goes_on.then_some(watch)))
    });
    Ok(sse::answer(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_must_be_absolute_and_a_mode_octal() {
        assert!(checked_path("/etc/x".into()).is_ok());
        for bad in ["", "etc/x", "/a\0b"] {
            assert_eq!(checked_path(bad.into()).unwrap_err().field, "path", "{bad:?}");
        }
        assert_eq!(checked_mode(Some("0644")).unwrap(), Some(0o644));
        assert_eq!(checked_mode(None).unwrap(), None);
        for bad in ["", "+644", "rw", "8", "17777", "-1"] {
            assert_eq!(checked_mode(Some(bad)).unwrap_err().field, "mode", "{bad:?}");
        }
    }
}
