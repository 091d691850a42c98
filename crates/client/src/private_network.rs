//! Private networks and their members.

use forkd_api::{CreateNetwork, Network, Sandbox};
use reqwest::Method;

use crate::client::segment;
use crate::{Client, ClientError};

impl Client {
    /// `GET /v1/networks`: private networks and their members.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn networks(&self) -> Result<Vec<Network>, ClientError> {
        self.get("/v1/networks").await
    }

    /// `POST /v1/networks`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_network(&self, name: &str) -> Result<Network, ClientError> {
        self.post("/v1/networks", &CreateNetwork { name: name.to_owned() }).await
    }

    /// `GET /v1/networks/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn private_network(&self, name: &str) -> Result<Network, ClientError> {
        self.get(&format!("/v1/networks/{}", segment(name))).await
    }

    /// `DELETE /v1/networks/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_network(&self, name: &str) -> Result<(), ClientError> {
        let path = format!("/v1/networks/{}", segment(name));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }

    /// `PUT /v1/networks/:name/members/:sandbox`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn join_network(&self, sandbox: &str, name: &str) -> Result<Sandbox, ClientError> {
        self.json(self.request(Method::PUT, &member(sandbox, name))).await
    }

    /// `DELETE /v1/networks/:name/members/:sandbox`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn leave_network(&self, sandbox: &str, name: &str) -> Result<Sandbox, ClientError> {
        self.json(self.request(Method::DELETE, &member(sandbox, name))).await
    }
}

fn member(sandbox: &str, network: &str) -> String {
    format!("/v1/networks/{}/members/{}", segment(network), segment(sandbox))
}
