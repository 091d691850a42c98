//! Who may ask, and what is written down of it.
//!
//! Three ways in, each with its own proof:
//!
//! | way | proof |
//! |---|---|
//! | Unix socket | file permission 0600, and the peer's user as the kernel tells it: ours or root |
//! | TCP without a token file | loopback address, and a `Host` that is a name of this machine |
//! | TCP with a token file | `Authorization: Bearer` with one of its tokens |
//!
//! `GET /healthz` needs no proof. Everything else without one is answered `401` or `403` before any
//! handler, and before the body is read.
//!
//! Does not do: rights for parts of the interface. Whoever is let in may do everything.

mod audit;
mod gate;
mod tls;
mod tokens;

pub(crate) use audit::AuditLog;
pub(crate) use gate::{Gate, Peer, Policy, RequestId, admit};
pub(crate) use tls::acceptor;
pub(crate) use tokens::Tokens;

pub use audit::AuditError;
pub use tls::TlsError;
pub use tokens::TokenFileError;
