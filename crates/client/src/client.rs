//! One method for each route.

use std::time::Duration;

use forkd_api::{
    BranchAnswer, BranchRequest, CompactSnapshot, CreateSandboxes, CreateSnapshot, ErrorBody,
    EvalAnswer, EvalRequest, ExecAnswer, ExecRequest, Health, Image, NetworkLog, NetworkPolicy,
    Operation, Pong, RollbackSandbox, Sandbox, Secret, Snapshot, SnapshotInfo, Version,
};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access;
use crate::sse::SseStream;
use crate::{Access, ApiFailure, BuildStream, ClientError, EventFilter, EventStream, Target};

/// For a connection to be made; no answer is meant, which may take as long as it needs.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// At most so many characters of a body that is not ours are shown in an error.
const SHOWN_CHARS_MAX: usize = 200;

/// What is kept of a guest's console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleLog {
    /// The end of it.
    pub bytes: Vec<u8>,
    /// How many bytes came before and are not kept.
    pub missing_bytes: u64,
}

/// What becomes of the sandboxes and snapshots that depend on a snapshot that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// It is not removed when there are any.
    Refuse,
    /// They are removed too.
    Remove,
    /// They stay, and keep working.
    Keep,
}

/// A client of one daemon. Cheap to clone. Must be used inside a Tokio runtime.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    target: Target,
    base: String,
}

impl Client {
    /// A client of the daemon at `target`; connects when it is first used.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new(target: Target) -> Result<Self, ClientError> {
        Self::with_access(target, &Access::default())
    }

    /// A client that has what the daemon demands over the network.
    ///
    /// # Errors
    /// When the token or the certificates cannot be used.
    pub fn with_access(target: Target, access: &Access) -> Result<Self, ClientError> {
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_DEADLINE)
            .user_agent(concat!("forkd/", env!("CARGO_PKG_VERSION")));
        if let Target::Socket(path) = &target {
            builder = access::trust_nobody(builder.unix_socket(path.as_path()))?;
        } else {
            builder = access.apply(builder)?;
        }
        let http = builder
            .build()
            .map_err(|source| ClientError::Unreachable { target: target.to_string(), source })?;
        let base = target.base();
        Ok(Self { http, target, base })
    }

    /// Where the daemon is.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// `GET /healthz`.
    ///
    /// # Errors
    /// See [`ClientError`]; the same holds for every other method.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get("/healthz").await
    }

    /// `GET /version`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn version(&self) -> Result<Version, ClientError> {
        self.get("/version").await
    }

    /// `GET /metrics`: text for Prometheus.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let bytes = self.bytes(self.request(Method::GET, "/metrics")).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// `GET /v1/images`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn images(&self) -> Result<Vec<Image>, ClientError> {
        self.get("/v1/images").await
    }

    /// `GET /v1/snapshots`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ClientError> {
        self.get("/v1/snapshots").await
    }

    /// `GET /v1/snapshots/:tag/info`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn snapshot_info(&self, tag: &str) -> Result<SnapshotInfo, ClientError> {
        self.get(&format!("/v1/snapshots/{}/info", segment(tag))).await
    }

    /// `GET /v1/snapshots/:tag/info` as the daemon writes it, with fields that this version of the
    /// client does not know.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn snapshot_info_json(&self, tag: &str) -> Result<serde_json::Value, ClientError> {
        self.get(&format!("/v1/snapshots/{}/info", segment(tag))).await
    }

    /// `POST /v1/snapshots`: builds a template and answers when it is ready.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_snapshot(&self, body: &CreateSnapshot) -> Result<Snapshot, ClientError> {
        self.post("/v1/snapshots", body).await
    }

    /// `POST /v1/snapshots`: builds a template and tells of each step.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn build_snapshot(&self, body: &CreateSnapshot) -> Result<BuildStream, ClientError> {
        let request = self
            .request(Method::POST, "/v1/snapshots")
            .header("accept", "application/x-ndjson")
            .json(body);
        Ok(BuildStream::new(self.send(request).await?, self.target.to_string()))
    }

    /// `POST /v1/snapshots/:tag/compact`: answers when the new snapshot is ready.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn compact_snapshot(
        &self,
        tag: &str,
        body: &CompactSnapshot,
    ) -> Result<Snapshot, ClientError> {
        self.post(&format!("/v1/snapshots/{}/compact", segment(tag)), body).await
    }

    /// `DELETE /v1/snapshots/:tag`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_snapshot(
        &self,
        tag: &str,
        dependents: Dependents,
    ) -> Result<(), ClientError> {
        let mut request = self.request(Method::DELETE, &format!("/v1/snapshots/{}", segment(tag)));
        match dependents {
            Dependents::Refuse => {}
            Dependents::Remove => request = request.query(&[("cascade", "true")]),
            Dependents::Keep => request = request.query(&[("force", "true")]),
        }
        self.send(request).await.map(drop)
    }

    /// `GET /v1/sandboxes`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn sandboxes(&self) -> Result<Vec<Sandbox>, ClientError> {
        self.get("/v1/sandboxes").await
    }

    /// `GET /v1/sandboxes?metadata.key=value`: those whose metadata has all of these words.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn sandboxes_with(
        &self,
        metadata: &[(String, String)],
    ) -> Result<Vec<Sandbox>, ClientError> {
        let filter = metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value));
        let filter: Vec<_> = filter.collect();
        self.json(self.request(Method::GET, "/v1/sandboxes").query(&filter)).await
    }

    /// `POST /v1/sandboxes`: starts sandboxes from a snapshot.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_sandboxes(
        &self,
        body: &CreateSandboxes,
    ) -> Result<Vec<Sandbox>, ClientError> {
        self.post("/v1/sandboxes", body).await
    }

    /// `GET /v1/sandboxes/:id`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox, ClientError> {
        self.get(&format!("/v1/sandboxes/{}", segment(id))).await
    }

    /// `DELETE /v1/sandboxes/:id`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_sandbox(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/sandboxes/{}", segment(id));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }

    /// `POST /v1/sandboxes/:id/branch`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn branch(
        &self,
        id: &str,
        body: &BranchRequest,
    ) -> Result<BranchAnswer, ClientError> {
        self.post(&format!("/v1/sandboxes/{}/branch", segment(id)), body).await
    }

    /// `POST /v1/sandboxes/:id/rollback`: puts the sandbox back to what it was at a snapshot.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rollback(&self, id: &str, tag: &str) -> Result<Sandbox, ClientError> {
        let body = RollbackSandbox { snapshot_tag: tag.to_owned() };
        self.post(&format!("/v1/sandboxes/{}/rollback", segment(id)), &body).await
    }

    /// `GET /v1/sandboxes/:id/network`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn network(&self, id: &str) -> Result<NetworkPolicy, ClientError> {
        self.get(&format!("/v1/sandboxes/{}/network", segment(id))).await
    }

    /// `GET /v1/sandboxes/:id/network/log`: the newest entries, or those that follow the number
    /// `after`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn network_log(
        &self,
        id: &str,
        after: Option<u64>,
        limit: Option<u32>,
    ) -> Result<NetworkLog, ClientError> {
        let path = format!("/v1/sandboxes/{}/network/log", segment(id));
        let query = [("after", after), ("limit", limit.map(u64::from))];
        let query: Vec<_> =
            query.iter().filter_map(|(key, value)| Some((key, (*value)?))).collect();
        self.json(self.request(Method::GET, &path).query(&query)).await
    }

    /// `PUT /v1/sandboxes/:id/network`: replaces what the sandbox may reach.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_network(
        &self,
        id: &str,
        policy: &NetworkPolicy,
    ) -> Result<Sandbox, ClientError> {
        let path = format!("/v1/sandboxes/{}/network", segment(id));
        self.json(self.request(Method::PUT, &path).json(policy)).await
    }

    /// `GET /v1/secrets`: names, never values.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn secrets(&self) -> Result<Vec<Secret>, ClientError> {
        self.get("/v1/secrets").await
    }

    /// `PUT /v1/secrets/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_secret(&self, name: &str, value: String) -> Result<(), ClientError> {
        let path = format!("/v1/secrets/{}", segment(name));
        let request = self.request(Method::PUT, &path);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(value);
        self.send(request).await.map(drop)
    }

    /// `DELETE /v1/secrets/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_secret(&self, name: &str) -> Result<(), ClientError> {
        let path = format!("/v1/secrets/{}", segment(name));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }

    /// `POST /v1/sandboxes/:id/pause`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause(&self, id: &str) -> Result<Sandbox, ClientError> {
        let path = format!("/v1/sandboxes/{}/pause", segment(id));
        self.json(self.request(Method::POST, &path)).await
    }

    /// `POST /v1/sandboxes/:id/resume`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume(&self, id: &str) -> Result<Sandbox, ClientError> {
        let path = format!("/v1/sandboxes/{}/resume", segment(id));
        self.json(self.request(Method::POST, &path)).await
    }

    /// `POST /v1/sandboxes/:id/exec`.
    ///
    /// # Errors
    /// See [`ClientError`]; a program that fails or runs out of time is no error.
    pub async fn exec(&self, id: &str, body: &ExecRequest) -> Result<ExecAnswer, ClientError> {
        self.post(&format!("/v1/sandboxes/{}/exec", segment(id)), body).await
    }

    /// `POST /v1/sandboxes/:id/eval`.
    ///
    /// # Errors
    /// See [`ClientError`]; an exception in the code is no error.
    pub async fn eval(&self, id: &str, body: &EvalRequest) -> Result<EvalAnswer, ClientError> {
        self.post(&format!("/v1/sandboxes/{}/eval", segment(id)), body).await
    }

    /// `POST /v1/sandboxes/:id/ping`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ping(&self, id: &str) -> Result<Pong, ClientError> {
        let path = format!("/v1/sandboxes/{}/ping", segment(id));
        self.json(self.request(Method::POST, &path)).await
    }

    /// `GET /v1/sandboxes/:id/logs`: what the guest wrote to its console, unfiltered.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn logs(&self, id: &str) -> Result<ConsoleLog, ClientError> {
        let route = format!("/v1/sandboxes/{}/logs", segment(id));
        let response = self.send(self.request(Method::GET, &route)).await?;
        let header = response.headers().get(forkd_api::MISSING_BYTES_HEADER);
        let missing_bytes = header.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.bytes().await.map_err(|source| self.broken(source))?;
        Ok(ConsoleLog { bytes: body.to_vec(), missing_bytes: missing_bytes.unwrap_or(0) })
    }

    /// `GET /v1/operations`, all or those with one state.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn operations(&self, state: Option<&str>) -> Result<Vec<Operation>, ClientError> {
        let request = self.request(Method::GET, "/v1/operations");
        self.json(request.query(&state.map(|state| [("state", state)]))).await
    }

    /// `GET /v1/operations/:id`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn operation(&self, id: &str) -> Result<Operation, ClientError> {
        self.get(&format!("/v1/operations/{}", segment(id))).await
    }

    /// `GET /v1/operations/:id/wait`: the operation when it has ended, or as it is after
    /// `timeout_secs`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn wait_operation(
        &self,
        id: &str,
        timeout_secs: u64,
    ) -> Result<Operation, ClientError> {
        let path = format!("/v1/operations/{}/wait", segment(id));
        let request = self.request(Method::GET, &path);
        self.json(request.query(&[("timeout_secs", timeout_secs)])).await
    }

    /// `POST /v1/operations/:id/cancel`: asks an operation to stop.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_operation(&self, id: &str) -> Result<Operation, ClientError> {
        let path = format!("/v1/operations/{}/cancel", segment(id));
        self.json(self.request(Method::POST, &path)).await
    }

    /// `GET /v1/events`: follows what happens, or goes on after the event `last`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn events(
        &self,
        filter: &EventFilter,
        last: Option<u64>,
    ) -> Result<EventStream, ClientError> {
        let mut request = self.request(Method::GET, "/v1/events").query(filter);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Ok(EventStream(self.sse(request).await?))
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, ClientError> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(|source| self.broken(source))?;
        serde_json::from_slice(&body).map_err(|error| self.not_understood(status, &error, &body))
    }

    /// Sends a request whose answer is a stream of events.
    pub(crate) async fn sse(&self, request: RequestBuilder) -> Result<SseStream, ClientError> {
        let response = self.send(request).await?;
        Ok(SseStream::new(response, self.target.to_string()))
    }

    async fn bytes(&self, request: RequestBuilder) -> Result<Vec<u8>, ClientError> {
        let response = self.send(request).await?;
        let body = response.bytes().await.map_err(|source| self.broken(source))?;
        Ok(body.to_vec())
    }

    /// Sends and sorts out every answer that is not a success.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|source| {
            if source.is_connect() || source.is_builder() {
                ClientError::Unreachable { target: self.target.to_string(), source }
            } else {
                self.broken(source)
            }
        })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|source| self.broken(source))?;
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => ApiFailure::new(status.as_u16(), error).into(),
            Err(error) => self.not_understood(status.as_u16(), &error, &body),
        })
    }

    pub(crate) fn broken(&self, source: reqwest::Error) -> ClientError {
        ClientError::Broken { target: self.target.to_string(), source }
    }

    fn not_understood(&self, status: u16, error: &serde_json::Error, body: &[u8]) -> ClientError {
        let text = String::from_utf8_lossy(body);
        let shown: String =
            text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect();
        let problem = format!("{error} in `{shown}`");
        ClientError::NotUnderstood { target: self.target.to_string(), status, problem }
    }
}

/// `text` as one segment of a path, whatever it contains: what a person typed as an id must not
/// become another route.
pub(crate) fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    // A segment of dots would be resolved away.
    let dots_only = text.bytes().all(|b| b == b'.');
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(char::from(byte)),
            b'.' if !dots_only => encoded.push('.'),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_one_segment_of_the_path() {
        assert_eq!(segment("sb-0123456789ab"), "sb-0123456789ab");
        assert_eq!(segment("a/b?c#d"), "a%2Fb%3Fc%23d");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("é"), "%C3%A9");
    }
}
