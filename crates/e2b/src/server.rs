//! Where each request goes.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use forkd_engine::Engine;
use forkd_types::{SandboxId, TagName};
use tower::ServiceExt as _;

use crate::aliases::Aliases;
use crate::control::repeat::Repeats;
use crate::domain::Domain;
use crate::envd::at::At;
use crate::envd::files::file_signature;
use crate::envd::place::Homes;
use crate::failure::{Failure, Kind, bad_gateway};
use crate::interpreter::{self, INTERPRETER_PORT};
use crate::listening::Listening;
use crate::pass_on::PassOn;
use crate::ports;
use crate::record::Records;
use crate::secret::Secret;
use crate::shared::{FindCaller, Shared, Stand};
use crate::subject::Subject;
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
    /// Names of templates that stand for snapshots: clients ask for `base` by themselves. What
    /// is said later is in the folder.
    pub templates: BTreeMap<String, TagName>,
    /// Ports of sandboxes have names below it.
    pub domain: Domain,
    /// Passes requests on to servers in sandboxes.
    pub pass_on: PassOn,
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
        let Config { engine, folder, find_caller, templates, domain, pass_on } = config;
        let records = Records::open(&folder)?;
        let secret = Secret::open(&folder)?;
        let templates = Aliases::in_folder(&folder, templates);
        let known: Vec<_> = engine.sandboxes().into_iter().map(|sandbox| sandbox.id).collect();
        records.keep_only(&known);
        let shared = Shared {
            engine,
            secret,
            records,
            templates,
            homes: Homes::default(),
            repeats: Repeats::default(),
            listening: Listening::default(),
            find_caller,
            pass_on,
            domain,
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
    let target = target::of(request.uri(), request.headers(), &shared.domain);
    let signer = match target {
        Target::Signed => signer(&shared, &request),
        _ => None,
    };
    let (path, headers) = (request.uri().path(), request.headers());
    let subject = Subject::of(&shared, &target, signer.as_ref(), path, headers);
    let mut response = match target {
        Target::Control => match control.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        Target::Unclear(problem) => Failure::new(Kind::InvalidArgument, problem).into_response(),
        Target::Signed => signed(shared, signer, request).await,
        Target::Port { said, id, port } => at_port(shared, said, id, port, request).await,
    };
    response.extensions_mut().insert(subject);
    response
}

async fn signed(shared: Arc<Shared>, signer: Option<SandboxId>, request: Request) -> Response {
    match signer {
        Some(id) if shared.is_open(&id) || shared.wake(&id).await => {
            envd::answer(At { shared, id }, request).await
        }
        Some(id) => bad_gateway(&id::shown(&id), None),
        None => Failure::new(Kind::Unauthenticated, "invalid signature").into_response(),
    }
}

async fn at_port(
    shared: Arc<Shared>,
    said: String,
    id: Option<SandboxId>,
    port: NonZeroU16,
    request: Request,
) -> Response {
    let Some(id) = id.filter(|id| shared.stand(id) != Stand::Gone) else {
        return bad_gateway(&said, None);
    };
    let is_envd = port == ENVD_PORT;
    let may = match is_envd {
        true => envd::has_token(&shared, &id, request.headers()),
        false => ports::permits(&shared, &id, port, request.headers()),
    };
    let runs = shared.is_open(&id) || may && shared.wake(&id).await;
    if !runs {
        return bad_gateway(&said, None);
    }
    match (is_envd, may) {
        (true, _) => envd::answer(At { shared, id }, request).await,
        (false, true) if port == INTERPRETER_PORT && !shared.has_interpreter(&id, port).await => {
            let is_code = request.uri().path() == "/execute";
            if is_code && !envd::has_token(&shared, &id, request.headers()) {
                return envd::no_token().into_response();
            }
            interpreter::answer(At { shared, id }, request).await
        }
        (false, true) => {
            let answer = ports::answer(&shared, &said, id.clone(), port, request).await;
            if port == INTERPRETER_PORT && answer.status() == StatusCode::BAD_GATEWAY {
                shared.listening.changed(&id);
            }
            answer
        }
        (false, false) => ports::refused(&said),
    }
}
