//! Reading requests so that every refusal has our body and names the field.

use std::num::NonZeroU16;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use forkd_api::ErrorCode;
use forkd_types::network::{NetworkName, SecretName, UnknownNetwork, UnknownSecret};
use forkd_types::{OperationId, ProcessId, SandboxId, TagName};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::budget::BodyAccount;
use crate::failure::Failure;

/// A JSON body. An absent one counts as `{}`.
///
/// The content type is demanded although we could guess: a web page cannot send this one to another
/// origin without asking first, which the daemon never permits.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let declared_json = is_json(request.headers());
        let bytes = body(request, state).await?;
        if bytes.is_empty() {
            return parse(b"{}").map(Self);
        }
        if !declared_json {
            return Err(Failure::new(ErrorCode::NotJson, "the body is not declared as JSON"));
        }
        parse(&bytes).map(Self)
    }
}

/// A body of any bytes, and what it pays for them for as long as they are held.
pub(crate) struct RawBody(pub(crate) Vec<u8>, pub(crate) Option<BodyAccount>);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let account = request.extensions().get::<BodyAccount>().cloned();
        body(request, state).await.map(|bytes| Self(bytes.into(), account))
    }
}

async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Failure> {
    let account = request.extensions().get::<BodyAccount>().cloned();
    let request = match &account {
        Some(account) => request.map(|body| account.charge(body)),
        None => request,
    };
    Bytes::from_request(request, state).await.map_err(|rejection| {
        if account.is_some_and(|account| account.was_refused()) {
            return no_memory_for_bodies();
        }
        let code = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::RequestTooLarge,
            _ => ErrorCode::BadRequest,
        };
        Failure::new(code, format!("the body was not received: {}", rejection.body_text()))
    })
}

/// The refusal of a body that would take what is left of the memory for bodies.
pub(crate) fn no_memory_for_bodies() -> Failure {
    let text = "other requests hold all of the memory that there is for bodies";
    Failure::new(ErrorCode::DaemonBusy, text)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.inner();
        let text = if path == "." { problem.to_string() } else { format!("{path}: {problem}") };
        Failure::bad_request(text)
    })?;
    json.end().map_err(|error| Failure::bad_request(error.to_string()))?;
    Ok(value)
}

/// The query of the address.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|query| Self(query.0))
            .map_err(|rejection| Failure::bad_request(rejection.body_text()))
    }
}

/// What the path has in it: one text, or several by their names.
async fn words<W, S>(parts: &mut Parts, state: &S) -> Result<W, Failure>
where
    W: DeserializeOwned + Send,
    S: Send + Sync,
{
    axum::extract::Path::from_request_parts(parts, state)
        .await
        .map(|path| path.0)
        .map_err(|rejection| Failure::bad_request(rejection.body_text()))
}

fn sandbox(text: &str) -> Result<SandboxId, Failure> {
    let unknown =
        |error: forkd_types::IdError| Failure::new(ErrorCode::SandboxNotFound, error.to_string());
    let id = text.parse().map_err(unknown)?;
    tracing::Span::current().record("sandbox", tracing::field::display(&id));
    Ok(id)
}

/// The sandbox that the path names. A text that is no id cannot name one: not found.
pub(crate) struct SandboxPath(pub(crate) SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for SandboxPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        sandbox(&words::<String, _>(parts, state).await?).map(Self)
    }
}

/// What a path with a sandbox and one of its processes has in it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ProcessWords {
    /// The sandbox's id
    id: String,
    /// The process's id
    process: String,
}

/// The background process that the path names, and its sandbox.
pub(crate) struct ProcessPath {
    pub(crate) sandbox: SandboxId,
    pub(crate) process: ProcessId,
}

impl<S: Send + Sync> FromRequestParts<S> for ProcessPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let ProcessWords { id: sandbox, process } = words(parts, state).await?;
        let unknown =
            |code| move |error: forkd_types::IdError| Failure::new(code, error.to_string());
        Ok(Self {
            sandbox: sandbox.parse().map_err(unknown(ErrorCode::SandboxNotFound))?,
            process: process.parse().map_err(unknown(ErrorCode::ProcessNotFound))?,
        })
    }
}

/// What a path with a sandbox and one of its ports has in it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct PortWords {
    /// The sandbox's id
    id: String,
    /// The port
    #[param(value_type = u16, minimum = 1)]
    port: NonZeroU16,
}

/// The port that the path names, and its sandbox.
pub(crate) struct PortPath {
    pub(crate) sandbox: SandboxId,
    pub(crate) port: NonZeroU16,
}

impl<S: Send + Sync> FromRequestParts<S> for PortPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let PortWords { id, port } = words(parts, state).await?;
        Ok(Self { sandbox: sandbox(&id)?, port })
    }
}

/// The snapshot that the path names. A text that is no tag cannot name one: not found.
pub(crate) struct SnapshotPath(pub(crate) TagName);

impl<S: Send + Sync> FromRequestParts<S> for SnapshotPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let text = words::<String, _>(parts, state).await?;
        let unknown = |error: forkd_types::TagError| {
            Failure::new(ErrorCode::SnapshotNotFound, error.to_string())
        };
        let name = text.parse().map_err(unknown)?;
        tracing::Span::current().record("snapshot", text);
        Ok(Self(name))
    }
}

/// The secret that the path names, if it can be a name.
pub(crate) struct SecretPath(pub(crate) Result<SecretName, UnknownSecret>);

impl SecretPath {
    /// A text that is no name cannot name one.
    pub(crate) fn not_found(error: UnknownSecret) -> Failure {
        Failure::new(ErrorCode::SecretNotFound, error.to_string())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SecretPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        Ok(Self(words::<String, _>(parts, state).await?.parse()))
    }
}

/// The private network that the path names. A text that is no name cannot name one: not found.
pub(crate) struct NetworkPath(pub(crate) NetworkName);

fn network(text: &str) -> Result<NetworkName, Failure> {
    text.parse().map_err(|error: UnknownNetwork| {
        Failure::new(ErrorCode::NetworkNotFound, error.to_string())
    })
}

impl<S: Send + Sync> FromRequestParts<S> for NetworkPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        network(&words::<String, _>(parts, state).await?).map(Self)
    }
}

/// What a path with a private network and one of its members has in it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct MemberWords {
    /// The network's name
    name: String,
    /// The sandbox's id
    sandbox: String,
}

/// The private network that the path names, and the sandbox.
pub(crate) struct MemberPath {
    pub(crate) network: NetworkName,
    pub(crate) sandbox: SandboxId,
}

impl<S: Send + Sync> FromRequestParts<S> for MemberPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let MemberWords { name, sandbox: id } = words(parts, state).await?;
        let sandbox = sandbox(&id)?;
        Ok(Self { network: network(&name)?, sandbox })
    }
}

/// The operation that the path names. A text that is no id cannot name one: not found.
pub(crate) struct OperationPath(pub(crate) OperationId);

impl<S: Send + Sync> FromRequestParts<S> for OperationPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let text = words::<String, _>(parts, state).await?;
        let unknown = |error: forkd_types::IdError| {
            Failure::new(ErrorCode::OperationNotFound, error.to_string())
        };
        let id = text.parse().map_err(unknown)?;
        tracing::Span::current().record("operation", tracing::field::display(&id));
        Ok(Self(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_api::{BranchRequest, CreateSandboxes, ExecRequest};

    #[test]
    fn a_malformed_field_is_named_with_its_path() {
        let error = |failure: Failure| failure.body().error;
        let failure = parse::<CreateSandboxes>(br#"{"snapshot_tag":"a","n":"two"}"#).unwrap_err();
        assert!(error(failure).starts_with("n: "));
        let failure = parse::<ExecRequest>(br#"{"args":["a",1]}"#).unwrap_err();
        assert!(error(failure).starts_with("args[1]: "));
        let failure = parse::<ExecRequest>(b"{}").unwrap_err();
        assert!(error(failure).contains("`args`"));
        assert!(parse::<BranchRequest>(b"{} x").is_err(), "nothing may follow the body");
        assert!(parse::<BranchRequest>(b"{}").is_ok());
    }

    #[test]
    fn only_json_counts_as_json() {
        let declared = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            is_json(&headers)
        };
        assert!(declared("application/json") && declared("application/JSON; charset=utf-8"));
        assert!(!declared("text/plain") && !declared("application/jsonp"));
        assert!(!is_json(&HeaderMap::new()));
    }
}
