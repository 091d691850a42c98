//! The daemon: the REST interface in front of the engine, on a Unix socket and, if asked for, on
//! loopback TCP.
//!
//! Guarantees: every answer that is not a success has a body of the catalogue; a state directory
//! has one daemon at most; a request sees only what is its caller's; no request that
//! changes state is torn by a client that goes away.
//!
//! Does not do: anything a handler could leave to the engine. Handlers check, call and convert.

mod access;
mod activity;
mod app;
mod body;
mod budget;
mod config;
mod connection;
mod convert;
pub mod doctor;
mod e2b;
mod extract;
mod failure;
mod handler;
mod header_list;
mod lock;
mod mapping;
mod metrics;
mod preview;
mod preview_url;
mod router;
mod serve;
mod socket;
#[cfg(test)]
mod tests;
mod tunnel;
mod upload;

pub use access::{AuditError, TlsError, TokenFileError};
pub use config::{E2bConfig, PreviewConfig, ServeConfig, SocketMode, SocketModeError, TlsFiles};
pub use e2b::{aliases as e2b_aliases, environment_file as e2b_environment_file};
pub use forkd_e2b::{Domain as E2bDomain, DomainError as E2bDomainError};
pub use forkd_engine::{
    Accelerator, AcceleratorChoice, IsolationPolicy, Limits, OwnerLimits, SandboxLimits,
};
pub use lock::LockError;
pub use preview_url::{PreviewUrl, PreviewUrlError};
pub use router::openapi_json;
pub use serve::{ServeError, serve};
