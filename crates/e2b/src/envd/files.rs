//! Addresses of files: reading and writing one over plain HTTP, with the sandbox's token or with a
//! signature under it.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{FromRequest as _, Multipart, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse as _, Response};
use forkd_engine::guest::{Attributes, FileKind, FileOwner, FileWrite};
use serde::Serialize;
use utoipa::ToSchema;

use super::at::At;
use super::download;
use super::entry::seen_kind;
use super::metadata;
use super::place::{named, owner_of};
use super::token::has_token;
use super::unread::Unread;
use super::upload::{self, Packing};
use crate::failure::{Failure, Kind};
use crate::id;
use crate::shared::now_unix;
use crate::signature::{Right, Signed};

/// Files of one request.
const PARTS_MAX: usize = 1000;

/// The query of a file's address.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Query {
    path: Option<String>,
    username: String,
    signature: Option<String>,
    expiration: Option<i64>,
}

impl Query {
    fn of(uri: &Uri) -> Result<Self, Failure> {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            match name.as_ref() {
                "path" => query.path = Some(value.into_owned()),
                "username" => query.username = value.into_owned(),
                "signature" => query.signature = Some(value.into_owned()),
                "signature_expiration" => {
                    let wrong = || Failure::field("signature_expiration", "is no time");
                    query.expiration = Some(value.parse().map_err(|_| wrong())?);
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

/// A signature in a request, to be looked up.
pub(crate) struct FileSignature {
    query: Query,
    right: Right,
}

/// The signature that a request comes with.
pub(crate) fn file_signature(method: &Method, uri: &Uri) -> Option<FileSignature> {
    let right = if *method == Method::POST { Right::Write } else { Right::Read };
    let query = Query::of(uri).ok()?;
    query.signature.is_some().then_some(FileSignature { query, right })
}

impl FileSignature {
    fn signed(&self) -> Signed<'_> {
        Signed {
            path: self.query.path.as_deref().unwrap_or_default(),
            user: &self.query.username,
            right: self.right,
            expiration: self.query.expiration,
        }
    }

    /// Whether it was made with this token.
    pub(crate) fn is_by(&self, token: &str) -> bool {
        let given = self.query.signature.as_deref();
        given.is_some_and(|given| self.signed().is_signed(token, given))
    }
}

fn permit(at: &At, request: &Request) -> Result<(), Failure> {
    let refused = |text: &str| Err(Failure::new(Kind::Unauthenticated, text));
    let Some(signature) = file_signature(request.method(), request.uri()) else {
        return refused("the X-Access-Token or a signature is missing");
    };
    // First whether it is ours, then whether its time is over: nobody learns of strange ones.
    if !signature.is_by(&at.shared.secret.access_token(&at.id)) {
        return refused("invalid signature");
    }
    if signature.signed().has_expired(now_unix()) {
        return refused("signature is already expired");
    }
    Ok(())
}

/// The client may if it has the token, or a signature.
pub(super) async fn answer(at: At, request: Request) -> Response {
    let has_token = has_token(&at.shared, &at.id, request.headers());
    let (request, unread) = Unread::of(request);
    let said = id::shown(&at.id);
    match done(at, request, has_token).await {
        Ok(response) => response,
        Err(failure) => {
            unread.skip().await;
            failure.into_response_of(&said)
        }
    }
}

async fn done(at: At, request: Request, has_token: bool) -> Result<Response, Failure> {
    if !has_token {
        permit(&at, &request)?;
    }
    if *request.method() == Method::POST {
        return Ok(Json(write(at, request).await?).into_response());
    }
    let (head, body) = request.into_parts();
    drop(body);
    read(&at, &head.uri, &head.headers).await
}

async fn read(at: &At, uri: &Uri, headers: &HeaderMap) -> Result<Response, Failure> {
    let query = Query::of(uri)?;
    let user = named(&query.username)?;
    let said = query.path.ok_or_else(|| Failure::field("path", "is missing"))?;
    let path = at.path(&said, user.as_deref()).await?;
    let entry = at.entry(&path).await?;
    if seen_kind(&entry) == FileKind::Directory {
        return Err(Failure::field("path", &format!("'{path}' is a directory")));
    }
    download::answer(at, &path, &entry, headers).await
}

fn text<'a>(headers: &'a HeaderMap, name: &axum::http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn write(at: At, request: Request) -> Result<Vec<Written>, Failure> {
    let query = Query::of(request.uri())?;
    let user = named(&query.username)?;
    let headers = request.headers();
    let new = New { owner: owner_of(user.as_deref()), metadata: metadata::of(headers)? };
    let kind = text(headers, &CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    match kind {
        "application/octet-stream" => {
            let packing = Packing::of(text(headers, &CONTENT_ENCODING))?;
            let said = query.path.ok_or_else(|| Failure::field("path", "is missing"))?;
            let path = at.path(&said, user.as_deref()).await?;
            let body = request.into_body().into_data_stream();
            upload::write(&at, new.file(&path), body, packing).await?;
            Ok(vec![new.written(&at, &path).await?])
        }
        "multipart/form-data" => {
            let parts = Multipart::from_request(request, &()).await;
            let parts = parts.map_err(|error| Failure::field("body", &error.body_text()))?;
            write_parts(&at, parts, query.path, user.as_deref(), &new).await
        }
        _ => Err(Failure::field("Content-Type", "must be octets or form data")),
    }
}

async fn write_parts(
    at: &At,
    mut parts: Multipart,
    named: Option<String>,
    user: Option<&str>,
    new: &New,
) -> Result<Vec<Written>, Failure> {
    let broken = |error: axum::extract::multipart::MultipartError| {
        Failure::field("body", &error.body_text())
    };
    let mut paths: Vec<String> = Vec::new();
    while let Some(part) = parts.next_field().await.map_err(broken)? {
        if part.name() != Some("file") {
            continue;
        }
        let said = match (&named, part.file_name()) {
            (Some(path), _) => path.clone(),
            (None, Some(name)) => unescaped(name),
            (None, None) => return Err(Failure::field("path", "is missing")),
        };
        let path = at.path(&said, user).await?;
        if paths.contains(&path) {
            return Err(Failure::field("path", "two files have the same one"));
        }
        if paths.len() >= PARTS_MAX {
            return Err(Failure::field("body", &format!("has more than {PARTS_MAX} files")));
        }
        upload::write(at, new.file(&path), part, Packing::None).await?;
        paths.push(path);
    }
    let mut all = Vec::new();
    for path in &paths {
        all.push(new.written(at, path).await?);
    }
    Ok(all)
}

/// The name that a client means in a form. All escape quotes, and Python's backslashes too.
fn unescaped(name: &str) -> String {
    name.replace("\\\\", "\\").replace("%22", "\"")
}

/// A file that is written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WrittenFile)]
pub(super) struct Written {
    /// Absolute.
    path: String,
    name: String,
    #[serde(rename = "type")]
    kind: WrittenKind,
    /// What the client has said of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    metadata: Option<BTreeMap<String, String>>,
}

/// What is written.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WrittenType)]
enum WrittenKind {
    File,
}

/// What all files of an upload are given.
struct New {
    owner: FileOwner,
    metadata: Attributes,
}

impl New {
    fn file(&self, path: &str) -> FileWrite {
        let (owner, attributes) = (Some(self.owner.clone()), self.metadata.clone());
        FileWrite { create_parents: true, owner, attributes, ..FileWrite::new(path) }
    }

    /// What is said of a file that is written.
    async fn written(&self, at: &At, path: &str) -> Result<Written, Failure> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let shown = metadata::shown(&self.metadata);
        if shown.is_some() {
            let entry = at.entry(path).await?;
            // What is behind a link is not looked at.
            if entry.kind == FileKind::File && entry.attributes.is_empty() {
                return Err(metadata::not_kept(path));
            }
        }
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(Written { path, name, kind: WrittenKind::File, metadata: shown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_of_a_query_is_found_by_the_token_alone() {
        let uri: Uri = "/files?path=a%20b&username=root&signature=v1_x".parse().unwrap();
        let query = Query::of(&uri).unwrap();
        assert_eq!((query.path.as_deref(), query.username.as_str()), (Some("a b"), "root"));
        let signed = Signed { path: "a b", user: "root", right: Right::Read, expiration: None };
        let uri = format!("/files?path=a%20b&username=root&signature={}", {
            signed.signature("token").replace('+', "%2B").replace('/', "%2F")
        });
        let signature = file_signature(&Method::GET, &uri.parse().unwrap()).unwrap();
        assert!(signature.is_by("token"));
        assert!(!signature.is_by("other"));
        let to_write = file_signature(&Method::POST, &uri.parse().unwrap()).unwrap();
        assert!(!to_write.is_by("token"), "a right to read is none to write");
        assert!(file_signature(&Method::GET, &"/files?path=a".parse().unwrap()).is_none());
    }
}
