//! The token that opens a sandbox to its client.

use axum::http::HeaderMap;
use forkd_types::SandboxId;

use crate::failure::{Failure, Kind};
use crate::shared::Shared;

/// Whether a request has the token that opens this sandbox.
pub(crate) fn has_token(shared: &Shared, id: &SandboxId, headers: &HeaderMap) -> bool {
    let token = headers.get("x-access-token");
    token.is_some_and(|token| shared.secret.opens(id, token.as_bytes()))
}

/// A request has not the token that opens this sandbox.
pub(crate) fn no_token() -> Failure {
    let text = "the X-Access-Token is missing or not that of this sandbox";
    Failure::new(Kind::Unauthenticated, text)
}
