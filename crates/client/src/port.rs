//! Ports of a sandbox: what listens, byte streams to it, and tokens for it.

use forkd_api::{CreatePortToken, Port, PortToken, UPGRADE_PROTOCOL};
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode};

use crate::client::segment;
use crate::{Client, ClientError, PortStream};

impl Client {
    /// `GET /v1/sandboxes/:id/ports`: what is listened on, by number and address.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ports(&self, sandbox: &str) -> Result<Vec<Port>, ClientError> {
        self.get(&format!("/v1/sandboxes/{}/ports", segment(sandbox))).await
    }

    /// `GET /v1/sandboxes/:id/ports/:port` with an upgrade: a byte stream to what listens there.
    /// Each direction ends by itself.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect_port(&self, sandbox: &str, port: u16) -> Result<PortStream, ClientError> {
        let path = format!("/v1/sandboxes/{}/ports/{port}", segment(sandbox));
        let request = self.request(Method::GET, &path);
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, UPGRADE_PROTOCOL);
        let response = self.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ClientError::NotUnderstood {
                target: self.target().to_string(),
                status: response.status().as_u16(),
                problem: "it is no byte stream".to_owned(),
            });
        }
        response.upgrade().await.map_err(|source| self.broken(source))
    }

    /// `POST /v1/sandboxes/:id/ports/:port/token`: a token that opens the port to whoever has it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn issue_port_token(
        &self,
        sandbox: &str,
        port: u16,
        body: &CreatePortToken,
    ) -> Result<PortToken, ClientError> {
        self.post(&format!("/v1/sandboxes/{}/ports/{port}/token", segment(sandbox)), body).await
    }

    /// `DELETE /v1/sandboxes/:id/ports/:port/token`: makes all tokens for the port worthless.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn revoke_port_tokens(&self, sandbox: &str, port: u16) -> Result<(), ClientError> {
        let path = format!("/v1/sandboxes/{}/ports/{port}/token", segment(sandbox));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }
}
