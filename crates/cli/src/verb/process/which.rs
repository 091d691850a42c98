//! Which process of which sandbox.

/// Which process.
#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The sandbox
    pub(super) sandbox: String,
    /// The process; see `forkd processes`
    pub(super) process: String,
}
