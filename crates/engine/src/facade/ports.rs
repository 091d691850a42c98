//! The facade for ports of a sandbox: what listens in it, connections to it, and tokens for it.

use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use forkd_protocol::code;
use forkd_types::SandboxId;

use crate::background::blocking;
use crate::guest::{GuestError, ListeningPort};
use crate::sandboxes::{TooManyTokens, permits};
use crate::{Engine, EngineError, PortStream, PortToken};

/// For the guest agent to list ports.
const LIST_DEADLINE: Duration = Duration::from_secs(30);
/// For the guest agent to connect to a server in the guest, which has 3 s for each of its
/// addresses.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);

impl Engine {
    /// The TCP ports that are listened on in a sandbox, by number and address.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn ports(&self, id: &SandboxId) -> Result<Vec<ListeningPort>, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.list_ports(LIST_DEADLINE).await).await
    }

    /// Connects to a TCP port of a sandbox, whatever the sandbox itself may reach. Where only a
    /// loopback address is listened on, the guest agent passes the connection on.
    ///
    /// # Errors
    /// [`EngineError::PortClosed`] where nothing listens, [`EngineError::PortSilent`] where nobody
    /// answers; else see [`EngineError`]. A paused sandbox is not running: it could not answer.
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<PortStream, EngineError> {
        let sandbox = self.used(id)?;
        let agent = sandbox.agent()?;
        if sandbox.link().is_none() {
            return Err(EngineError::NoNetworkDevice { id: id.clone() });
        }
        let networks = &self.lifecycle.networks;
        let stream = match networks.dial(id, port).await {
            Err(EngineError::PortClosed { .. }) => {
                let opened = agent.open_port(port, OPEN_DEADLINE).await;
                let opened = match opened {
                    Err(GuestError::Remote { code, .. }) if code == code::PORT_CLOSED => {
                        return Err(EngineError::PortClosed { id: id.clone(), port });
                    }
                    Err(GuestError::Remote { code, .. }) if code == code::BUSY => {
                        return Err(EngineError::TooManyConnections { id: id.clone() });
                    }
                    other => sandbox.explain(other).await?,
                };
                // Whatever listens there is in the same guest.
                networks.dial(id, opened).await?
            }
            dialled => dialled?,
        };
        Ok(sandbox.port_stream(stream))
    }

    /// Makes a token that opens one port of a sandbox to whoever has it.
    ///
    /// # Errors
    /// [`EngineError::TooManyPortTokens`]; else see [`EngineError`].
    pub async fn issue_port_token(
        &self,
        id: &SandboxId,
        port: NonZeroU16,
        ttl: Duration,
    ) -> Result<PortToken, EngineError> {
        let (tokens, folder) = (Arc::clone(&self.port_tokens), self.run_directory_of(id)?);
        let issued = blocking(move || tokens.issue(&folder, port, ttl)).await?;
        let issued = issued.map_err(|error| unreadable(id, &error))?;
        issued.map_err(|TooManyTokens| EngineError::TooManyPortTokens { id: id.clone() })
    }

    /// Makes all tokens for a port of a sandbox worthless.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn revoke_port_tokens(
        &self,
        id: &SandboxId,
        port: NonZeroU16,
    ) -> Result<(), EngineError> {
        let (tokens, folder) = (Arc::clone(&self.port_tokens), self.run_directory_of(id)?);
        let revoked = blocking(move || tokens.revoke(&folder, port)).await?;
        revoked.map_err(|error| unreadable(id, &error))
    }

    /// Whether a token opens a port of a sandbox now.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], and when the tokens cannot be read.
    pub async fn port_token_permits(
        &self,
        id: &SandboxId,
        port: NonZeroU16,
        token: String,
    ) -> Result<bool, EngineError> {
        let folder = self.run_directory_of(id)?;
        let permitted = blocking(move || permits(&folder, port, &token)).await?;
        permitted.map_err(|error| unreadable(id, &error))
    }
}

fn unreadable(id: &SandboxId, error: &io::Error) -> EngineError {
    EngineError::Internal(format!("read or write the port tokens of {id}: {error}"))
}
