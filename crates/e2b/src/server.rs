//! Where each request goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use forkd_engine::Engine;
use forkd_types::{SandboxId, TagName};
use serde_json::json;
use tower::ServiceExt as _;

use crate::envd::at::At;
use crate::envd::files::file_signature;
use crate::envd::place::Homes;
use crate::envd::table::Processes;
use crate::envd::watchers::Watchers;
use crate::failure::{Failure, Kind};
use crate::record::Records;
use crate::secret::Secret;
use crate::shared::{FindCaller, Shared};
use crate::target::{self, ENVD_PORT, Target};
use crate::{control, envd, id};

/// What is needed to answer as E2B.
pub struct Config {
    /// The engine as the daemon sees it.
    pub engine: Engine,
    /// Where the key and what is kept of each sandbox is; a folder for this alone.
    pub folder: PathBuf,
    /// Who comes in with which key.
    pub find_caller: FindCaller,
    /// Names of templates that stand for snapshots: E2B's clients ask for `base` by themselves.
    pub templates: BTreeMap<String, TagName>,
}

/// E2B's interfaces.
#[derive(Clone)]
pub struct E2b {
    shared: Arc<Shared>,
}

impl E2b {
    /// Opens the folder; what is kept of sandboxes that are gone is removed.
    ///
    /// # Errors
    /// When the folder or the key cannot be read or made.
    pub fn open(config: Config) -> std::io::Result<Self> {
        let Config { engine, folder, find_caller, templates } = config;
        let records = Records::open(&folder)?;
        let secret = Secret::open(&folder)?;
        let known: Vec<_> = engine.sandboxes().into_iter().map(|sandbox| sandbox.id).collect();
        records.keep_only(&known);
        let shared = Shared {
            engine,
            secret,
            records,
            templates,
            processes: Processes::default(),
            homes: Homes::default(),
            watchers: Watchers::default(),
            find_caller,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The key that lets the daemon's own user in.
    #[must_use]
    pub fn api_key(&self) -> String {
        self.shared.secret.api_key()
    }

    /// All routes. Bodies are not limited here: each route says what it holds.
    pub fn router(&self) -> Router {
        let control = control::router(Arc::clone(&self.shared));
        let shared = Arc::clone(&self.shared);
        let unlimited = DefaultBodyLimit::disable();
        Router::new().fallback(dispatch).layer(unlimited).with_state((shared, control))
    }
}

/// The sandbox whose token has signed this query.
fn signer(shared: &Shared, request: &Request) -> Option<SandboxId> {
    let signature = file_signature(request.method(), request.uri())?;
    let mut ids = shared.engine.sandboxes().into_iter().map(|sandbox| sandbox.id);
    ids.find(|id| signature.is_by(&shared.secret.access_token(id)))
}

async fn dispatch(
    State((shared, control)): State<(Arc<Shared>, Router)>,
    request: Request,
) -> Response {
    match target::of(request.uri(), request.headers()) {
        Target::Control => match control.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        Target::Unclear(problem) => Failure::new(Kind::InvalidArgument, problem).into_response(),
        Target::Signed => match signer(&shared, &request) {
            Some(id) => at_port(shared, id::shown(&id), Some(id), ENVD_PORT, request).await,
            None => Failure::new(Kind::Unauthenticated, "invalid signature").into_response(),
        },
        Target::Port { said, id, port } => at_port(shared, said, id, port, request).await,
    }
}

async fn at_port(
    shared: Arc<Shared>,
    said: String,
    id: Option<SandboxId>,
    port: u16,
    request: Request,
) -> Response {
    let Some(id) = id.filter(|id| shared.is_open(id)) else {
        return bad_gateway(&said, None);
    };
    if port != ENVD_PORT {
        return bad_gateway(&said, Some(port));
    }
    envd::answer(At { shared, id }, request).await
}

/// Clients look for these words, and tell by them whether the sandbox or its server is missing.
pub(crate) fn bad_gateway(said: &str, port: Option<u16>) -> Response {
    let said: String = said.chars().take(80).collect();
    let body = match port {
        None => json!({"sandboxId": said, "message": "The sandbox was not found", "code": 502}),
        Some(port) => json!({
            "sandboxId": said, "port": port, "code": 502,
            "message": "The sandbox is running but port is not open",
        }),
    };
    let mut response = (StatusCode::BAD_GATEWAY, Json(body)).into_response();
    let no = axum::http::HeaderValue::from_static("false");
    response.headers_mut().insert("should-retry", no);
    response
}
