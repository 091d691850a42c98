//! A server of the Model Context Protocol: the daemon's sandboxes as tools for language models.
//!
//! Guarantees: a request that the daemon refuses becomes an answer that says so, with its remedy,
//! so that the model can act on it; no field of an answer has more text than [`TEXT_BYTES_MAX`],
//! whatever a guest prints.
//!
//! Does not do: own a sandbox. What a model makes stays until it, or somebody else, deletes it.

mod arguments;
mod server;
mod text;

pub use self::server::Server;
pub use self::text::TEXT_BYTES_MAX;

use forkd_client::Client;
use rmcp::ServiceExt as _;
use rmcp::service::{QuitReason, ServerInitializeError};
use rmcp::transport::stdio;

/// Why serving ended otherwise than by the end of the input.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The other side did not introduce itself.
    #[error("the client does not speak the Model Context Protocol")]
    NotIntroduced(#[source] Box<ServerInitializeError>),
    /// The task that serves has died; a defect.
    #[error("the server's task died: {0}")]
    Died(String),
}

/// Serves on standard input and output until the input ends.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(client: Client) -> Result<(), ServeError> {
    let running = match Server::new(client).serve(stdio()).await {
        Ok(running) => running,
        // Nobody was there.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(ServeError::NotIntroduced(Box::new(error))),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) => Err(ServeError::Died(error.to_string())),
        Err(error) => Err(ServeError::Died(error.to_string())),
        Ok(_) => Ok(()),
    }
}
