//! What all requests share, and where each goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use forkd_engine::{Caller, Engine};
use forkd_types::{SandboxId, SandboxState, TagName};
use serde_json::json;
use tower::ServiceExt as _;

use crate::envd::{At, Homes, Processes, Watchers, file_signature};
use crate::failure::{Failure, Kind};
use crate::record::Records;
use crate::secret::Secret;
use crate::target::{self, ENVD_PORT, Target};
use crate::{control, envd, id};

/// The version of E2B's agent that clients are told: they decide by it what they may ask.
pub(crate) const ENVD_VERSION: &str = "0.6.13";

/// Who comes in with a key of the operator's. The daemon's own key is known here.
pub type FindCaller = Arc<dyn Fn(&[u8]) -> Option<Caller> + Send + Sync>;

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

/// What all requests share.
pub(crate) struct Shared {
    /// As the daemon sees it: who holds a sandbox's token needs no other right.
    pub(crate) engine: Engine,
    pub(crate) secret: Secret,
    pub(crate) records: Records,
    pub(crate) templates: BTreeMap<String, TagName>,
    pub(crate) processes: Processes,
    pub(crate) homes: Homes,
    pub(crate) watchers: Watchers,
    find_caller: FindCaller,
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

impl Shared {
    /// Who comes in with this key.
    pub(crate) fn caller(&self, key: &[u8]) -> Option<Caller> {
        if self.secret.is_api_key(key) {
            return Some(Caller::default());
        }
        (self.find_caller)(key)
    }

    /// Whether a sandbox answers on its ports.
    fn is_open(&self, id: &SandboxId) -> bool {
        self.engine.sandbox(id).is_ok_and(|sandbox| stand_of(sandbox.state) == Stand::Running)
    }

    /// The sandbox whose token has signed this query.
    fn signer(&self, request: &Request) -> Option<SandboxId> {
        let signature = file_signature(request.method(), request.uri())?;
        let mut ids = self.engine.sandboxes().into_iter().map(|sandbox| sandbox.id);
        ids.find(|id| signature.is_by(&self.secret.access_token(id)))
    }
}

/// How a sandbox stands, as far as clients tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    Running,
    Paused,
    /// There is none, for them.
    Gone,
}

/// What a client is told of a state.
pub(crate) const fn stand_of(state: SandboxState) -> Stand {
    match state {
        SandboxState::Running | SandboxState::Branching | SandboxState::RollingBack => {
            Stand::Running
        }
        SandboxState::Paused => Stand::Paused,
        SandboxState::Starting
        | SandboxState::Stopping
        | SandboxState::Dead
        | SandboxState::Gone => Stand::Gone,
    }
}

/// Seconds since 1970.
pub(crate) fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
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
        Target::Signed => match shared.signer(&request) {
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
