//! What happens in the daemon, as it happens.

use serde::Serialize;

use crate::ClientError;
use crate::sse::{ServerEvent, SseStream};

/// Which events of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EventFilter {
    /// Only types that begin so.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Only what concerns this sandbox.
    pub sandbox: Option<String>,
    /// Only what concerns this snapshot.
    pub snapshot: Option<String>,
}

/// The events of the daemon, one by one.
#[derive(Debug)]
pub struct EventStream(pub(crate) SseStream);

impl EventStream {
    /// The next event; `None` when the stream is over. Safe to cancel.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        self.0.next().await
    }
}
