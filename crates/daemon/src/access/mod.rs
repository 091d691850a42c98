//! Who may ask, and what is written down of it.
//!
//! Three ways in, each with its own proof:
//!
//! | way | proof |
//! |---|---|
//! | Unix socket | the file's permission, and the peer's user as the kernel tells it |
//! | TCP without a token file | loopback address, and a `Host` that is a name of this machine |
//! | TCP with a token file | `Authorization: Bearer` with one of its tokens |
//!
//! `GET /healthz` needs no proof. Everything else without one is answered `401` or `403` before any
//! handler, and before the body is read.
//!
//! The gate says who the caller is; what exists for it is the engine's business.
//!
//! Does not do: rights for parts of the interface. A caller may do everything with what is its own.

mod audit;
mod gate;
mod tls;
mod tokens;

pub(crate) use audit::{AuditLog, Line};
pub(crate) use gate::{Gate, Peer, Policy, RequestId, admit, describe};
pub(crate) use tls::acceptor;
pub(crate) use tokens::Tokens;

pub use audit::AuditError;
pub use tls::TlsError;
pub use tokens::TokenFileError;
