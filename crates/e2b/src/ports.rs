//! Servers in sandboxes: what their clients may, and what is answered where there is none.
//!
//! ```text
//! GET http://3000-sb0123456789ab.localhost:8891/    whoever knows the address may
//!     made with `allowPublicTraffic: false`         E2B-Traffic-Access-Token, else 403
//!     nothing listens there                         502, port is not open
//!     paused, made to wake by itself                it goes on, and then as above
//! ```
//!
//! Guarantees: a sandbox that no client of E2B made asks for the token; neither that token nor one
//! that opens the sandbox reaches the server.
//!
//! Does not do: pass requests on. The daemon does, as for its previews.

use std::num::NonZeroU16;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use forkd_engine::EngineError;
use forkd_types::SandboxId;

use crate::failure::{Failure, NoServer, bad_gateway};
use crate::pass_on::{NotPassed, ToPort};
use crate::shared::Shared;

const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Whether a request may reach a port of this sandbox.
pub(crate) fn permits(
    shared: &Shared,
    id: &SandboxId,
    port: NonZeroU16,
    headers: &HeaderMap,
) -> bool {
    let is_public = shared.records.get(id).is_some_and(|record| record.allow_public_traffic);
    let is_shown = || {
        let sandbox = shared.engine.sandbox(id);
        sandbox.is_ok_and(|sandbox| sandbox.options.policy().is_public(port))
    };
    let token = headers.get(TRAFFIC_TOKEN);
    let has_token = token.is_some_and(|token| shared.secret.admits(id, token.as_bytes()));
    has_token || is_public || is_shown()
}

/// The answer to a request that may not.
pub(crate) fn refused(said: &str) -> Response {
    let message = "the E2B-Traffic-Access-Token is missing or not that of this sandbox";
    let (sandbox_id, message) = (said.to_owned(), message.to_owned());
    let status = StatusCode::FORBIDDEN;
    let body = NoServer { sandbox_id, message, code: status.as_u16(), port: None };
    (status, Json(body)).into_response()
}

/// Passes a request that may to a sandbox that runs.
pub(crate) async fn answer(
    shared: &Shared,
    said: &str,
    id: SandboxId,
    port: NonZeroU16,
    mut request: Request,
) -> Response {
    take_tokens(shared, &id, request.headers_mut());
    let policy = shared.engine.sandbox(&id).map(|sandbox| sandbox.options.policy());
    let host = policy.ok().and_then(|policy| policy.mask_request_host).map(|host| host.at(port));
    match (shared.pass_on)(ToPort { sandbox: id, port, host, request }).await {
        Ok(answer) => answer,
        Err(NotPassed::Engine(EngineError::PortClosed { .. })) => {
            bad_gateway(said, Some(port.get()))
        }
        Err(NotPassed::Engine(error)) => Failure::from(error).into_response_of(said),
        Err(NotPassed::Server(error)) => {
            let message = format!("what listens on port {port}: {error}");
            let (sandbox_id, status) = (said.to_owned(), StatusCode::BAD_GATEWAY);
            let port = Some(port.get());
            (status, Json(NoServer { sandbox_id, message, code: status.as_u16(), port }))
                .into_response()
        }
    }
}

/// A server has no use for what opens its own sandbox, and a key of the control interface that was
/// sent by mistake must not get there.
fn take_tokens(shared: &Shared, id: &SandboxId, headers: &mut HeaderMap) {
    headers.remove(TRAFFIC_TOKEN);
    let holds = |name: &str, opens: &dyn Fn(&[u8]) -> bool| {
        headers.get_all(name).iter().any(|value| opens(value.as_bytes()))
    };
    let has_token = holds("x-access-token", &|value| shared.secret.opens(id, value));
    let has_key = holds("x-api-key", &|value| shared.caller(value).is_some());
    for (name, is_there) in [("x-access-token", has_token), ("x-api-key", has_key)] {
        if is_there {
            headers.remove(name);
        }
    }
}
