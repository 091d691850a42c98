//! Stands between a daemon's socket and its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use super::{Answered, Asked, Document};

/// More than any request of a test has.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Judges all that passes a daemon's socket, until it is dropped.
#[derive(Debug)]
pub struct ContractProxy {
    socket: PathBuf,
    shared: Arc<Shared>,
    /// Ends with the proxy.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    daemon: PathBuf,
    document: Document,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    operations: BTreeMap<String, u64>,
    broken: BTreeSet<String>,
}

impl ContractProxy {
    /// Takes the place of a daemon that listens at `socket`. Connections that are open stay.
    ///
    /// # Panics
    /// When there is no such socket.
    #[must_use]
    pub fn in_front_of(socket: &Path) -> Self {
        let daemon = socket.with_extension("daemon");
        fs::rename(socket, &daemon).expect("the daemon has a socket");
        let shared = Shared { daemon, document: Document::committed(), seen: Mutex::default() };
        let shared = Arc::new(shared);
        let runtime = Runtime::new().expect("threads can be started");
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).expect("the daemon's place is free")
        };
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { socket: socket.to_owned(), shared, runtime: Some(runtime) }
    }

    /// Gives the daemon its place back. Returns the operations that were seen, as `METHOD
    /// /path/{parameter}`, and how often.
    ///
    /// # Errors
    /// What was not as the document says, a line each.
    pub fn end(self) -> Result<BTreeMap<String, u64>, String> {
        let shared = Arc::clone(&self.shared);
        drop(self);
        let seen = std::mem::take(&mut *shared.lock());
        if seen.broken.is_empty() {
            return Ok(seen.operations);
        }
        let broken: Vec<_> = seen.broken.into_iter().collect();
        Err(format!("against openapi/v1.json:\n{}", broken.join("\n")))
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, asked: &Asked<'_>, answer: &Answered<'_>) {
        let verdict = self.document.judge(asked, answer);
        let mut seen = self.lock();
        match verdict {
            Ok(operation) => *seen.operations.entry(operation).or_default() += 1,
            Err(what) => drop(seen.broken.insert(what)),
        }
    }
}

impl Drop for ContractProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // It may have gone.
        let _absent = fs::rename(&self.shared.daemon, &self.socket);
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match forward(&shared, request).await {
        Ok(response) => response,
        Err(error) => (StatusCode::BAD_GATEWAY, format!("contract proxy: {error}")).into_response(),
    }
}

async fn forward(
    shared: &Shared,
    request: Request,
) -> Result<Response, Box<dyn std::error::Error>> {
    let (parts, body) = request.into_parts();
    let sent = axum::body::to_bytes(body, BODY_BYTES_MAX).await?;
    let stream = UnixStream::connect(&shared.daemon).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (method, uri) = (parts.method.to_string(), parts.uri.clone());
    let response =
        sender.send_request(Request::from_parts(parts, Body::from(sent.clone()))).await?;
    let (parts, body) = response.into_parts();
    let media_type = parts.headers.get("content-type").and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_owned();
    let (status, asked) = (parts.status.as_u16(), asked(&method, &uri, &sent));
    if media_type != "application/json" {
        shared.judge(&asked, &Answered { status, media_type: &media_type, body: &[] });
        return Ok(Response::from_parts(parts, Body::new(body)));
    }
    let received = body.collect().await?.to_bytes();
    shared.judge(&asked, &Answered { status, media_type: &media_type, body: &received });
    Ok(Response::from_parts(parts, Body::from(received)))
}

fn asked<'a>(method: &'a str, uri: &'a axum::http::Uri, body: &'a [u8]) -> Asked<'a> {
    Asked { method, path: uri.path(), query: uri.query().unwrap_or_default(), body }
}
