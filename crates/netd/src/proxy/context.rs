//! What one connection has beside its two ends.

use std::sync::Arc;

use forkd_types::Owner;
use forkd_types::network::HeaderRules;
use tokio::sync::watch;

use super::credentials::Credentials;

/// What a connection has beside its two ends.
pub(crate) struct Context {
    pub(crate) credentials: Arc<Credentials>,
    /// Whose secrets the rules name.
    pub(crate) owner: Owner,
    /// As they are now.
    pub(crate) rules: watch::Receiver<HeaderRules>,
    /// Hears of each request that is refused.
    pub(crate) refused: Box<dyn Fn(String) + Send + Sync>,
}
