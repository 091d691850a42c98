//! The way to a guest agent: the socket of its port.

use std::path::Path;

use tokio::net::UnixStream;

use crate::EngineError;
use crate::guest::GuestAgent;

/// Connects to the agent's port of a VM. Nothing is sent yet.
pub(crate) async fn connect_agent(socket: &Path) -> Result<GuestAgent, EngineError> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream
        .map_err(|error| EngineError::Internal(format!("connect to the agent's port: {error}")))?;
    Ok(GuestAgent::connect(stream)?)
}
