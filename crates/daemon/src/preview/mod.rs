//! Previews: servers in sandboxes, for browsers and other clients of HTTP.
//!
//! ```text
//! GET http://8080-sb-0123456789ab.localhost:8890/?forkd_token=...
//!     address: port 8080 of that sandbox
//!     credential: the port is public, or the token is one for it -- else 404
//!     forward: what the server says, as it comes
//! ```
//!
//! Guarantees: a listener and an origin of their own, so a page of a sandbox is another site than
//! the API and than every other port; without a token for the very port, unless the sandbox's
//! policy makes it public, the answer is the same whether there is a sandbox or not; the token does
//! not reach the sandbox; bodies are passed on as they come, in both directions, with what is a
//! WebSocket or another upgraded connection.
//!
//! Does not do: check what a server sends, or cache it.

mod address;
mod credential;
mod forward;

use std::num::NonZeroU16;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Scheme;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use forkd_engine::{Engine, EngineError};
use forkd_types::SandboxId;

use self::address::{Named, Target};
use self::credential::{Credential, Source};
use crate::app::Shared;
use crate::failure::Failure;
use crate::preview_url::PreviewUrl;

/// Under this name the metrics count all previews.
const ROUTE: &str = "preview";

/// What the listener of previews at `url` answers with.
pub(crate) fn router(app: Shared, url: PreviewUrl) -> Router {
    Router::new().fallback(preview).with_state(Previews { app, url })
}

#[derive(Clone)]
struct Previews {
    app: Shared,
    url: PreviewUrl,
}

async fn preview(State(previews): State<Previews>, request: Request) -> Response {
    let metrics = previews.app.metrics.clone();
    let answer = previews.answer(request).await;
    metrics.answered("any", ROUTE, answer.status().as_u16(), None);
    answer
}

impl Previews {
    async fn answer(&self, mut request: Request) -> Response {
        let Some(target) = address::target(&self.url, &request) else {
            let text = "no preview has this host\n";
            return told(StatusCode::MISDIRECTED_REQUEST, text);
        };
        let credential = credential::take(&mut request);
        let engine = self.app.engine();
        let policy = engine.sandbox(&target.sandbox).map(|sandbox| sandbox.options.policy());
        let Ok(policy) = policy else { return hidden() };
        if !policy.is_public(target.port) {
            let Some(Credential { token, source }) = credential else { return hidden() };
            let permits = engine.port_token_permits(&target.sandbox, target.port, token.clone());
            if !permits.await.unwrap_or_default() {
                return hidden();
            }
            let safe = matches!(*request.method(), Method::GET | Method::HEAD);
            if source == Source::Query && target.named == Named::Host && safe {
                return self.with_cookie(&request, &token);
            }
        }
        let host = policy.mask_request_host.map(|host| host.at(target.port));
        self.forward(target, request, host).await
    }

    /// Puts the token out of sight: no page learns it from its own address, and no link leaks it.
    fn with_cookie(&self, request: &Request, token: &str) -> Response {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // A browser takes what begins with two of these for another host.
        let path = format!("/{}", path.trim_start_matches(['/', '\\']));
        let cookie = credential::cookie(token, self.url.is_https());
        let location = HeaderValue::from_str(&path);
        let (Ok(location), Ok(cookie)) = (location, HeaderValue::from_str(&cookie)) else {
            return hidden();
        };
        (StatusCode::SEE_OTHER, [(LOCATION, location), (SET_COOKIE, cookie)]).into_response()
    }

    async fn forward(&self, target: Target, request: Request, host: Option<String>) -> Response {
        let Target { sandbox, port, .. } = target;
        let engine = self.app.engine();
        match pass_on(engine, &sandbox, port, request, self.url.scheme(), host).await {
            Ok(answer) => answer,
            Err(NotPassed::Engine(EngineError::PortClosed { .. })) => {
                let text = format!("nothing in {sandbox} listens on port {port}\n");
                told(StatusCode::BAD_GATEWAY, text)
            }
            Err(NotPassed::Engine(error)) => {
                let failure = Failure::from(error);
                failure.log();
                let status = StatusCode::from_u16(failure.code().entry().status);
                let text = format!("{}\n", failure.body().error);
                told(status.unwrap_or(StatusCode::BAD_GATEWAY), text)
            }
            Err(NotPassed::Server(error)) => {
                let text = format!("what listens on port {port} of {sandbox}: {error}\n");
                told(StatusCode::BAD_GATEWAY, text)
            }
        }
    }
}

/// Why a request has no answer of a server in a sandbox.
pub(crate) enum NotPassed {
    /// There is no connection to it.
    Engine(EngineError),
    /// It does not speak HTTP, or broke off.
    Server(hyper::Error),
}

/// Passes a request on to what listens on a port. The client's tokens are out of it.
pub(crate) async fn pass_on(
    engine: &Engine,
    sandbox: &SandboxId,
    port: NonZeroU16,
    request: Request,
    scheme: &Scheme,
    host: Option<String>,
) -> Result<Response, NotPassed> {
    let stream = engine.dial(sandbox, port.get()).await.map_err(NotPassed::Engine)?;
    forward::forward(request, stream, scheme, host).await.map_err(NotPassed::Server)
}

/// The answer to everybody who has no token for what is there.
fn hidden() -> Response {
    let text = "there is nothing here for you\n\n\
        A preview needs a token. Open the address that `forkd port SANDBOX PORT --preview` \
        prints,\nor send the token in the header X-Forkd-Traffic-Token.\n";
    told(StatusCode::NOT_FOUND, text)
}

/// An answer of ours, not of a sandbox.
fn told(status: StatusCode, text: impl Into<Body>) -> Response {
    let headers =
        [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, text.into()).into_response()
}
