//! What becomes of a connection that names something.

use forkd_types::network::DomainName;

/// What becomes of a connection with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Passes,
    Refused,
    /// It has rules: the gateway ends it.
    Ends,
}

/// A connection of a guest that the gateway ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The host.
    pub(crate) name: DomainName,
    /// Whether the guest speaks TLS.
    pub(crate) tls: bool,
}
