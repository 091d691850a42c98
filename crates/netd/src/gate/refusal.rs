//! What is wrong with what a client sends.

use forkd_types::network::DomainName;

/// Why a connection is reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It names something that is not allowed there.
    Name(DomainName),
    /// It names a host with header rules, and is not the first request of its connection.
    Plain(DomainName),
    /// It names nothing, or cannot be understood.
    Unclear(&'static str),
}
