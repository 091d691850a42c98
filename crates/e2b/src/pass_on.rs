//! What the daemon does for this crate: passing a request on to a server in a sandbox.

use std::num::NonZeroU16;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use forkd_engine::EngineError;
use forkd_types::SandboxId;
use futures_util::future::BoxFuture;

/// A request for a server in a sandbox.
pub struct ToPort {
    /// Where it runs.
    pub sandbox: SandboxId,
    /// Where it listens.
    pub port: NonZeroU16,
    /// What it is told in place of the host that the client sees.
    pub host: Option<String>,
    /// What it is asked. No token is in it.
    pub request: Request,
}

/// Why a server in a sandbox gave no answer.
pub enum NotPassed {
    /// There is no connection to it.
    Engine(EngineError),
    /// It does not speak HTTP, or broke off.
    Server(String),
}

/// Passes a request on to a server.
pub type PassOn =
    Arc<dyn Fn(ToPort) -> BoxFuture<'static, Result<Response, NotPassed>> + Send + Sync>;
