//! Snapshots as files and in registries, and keys.

use std::io::Read;

use forkd_api::{
    HubListing, HubSnapshot, Keys, PullSnapshot, PushSnapshot, PushedSnapshot, Snapshot, TrustKey,
};
use reqwest::Method;

use crate::client::segment;
use crate::file::pieces;
use crate::{Client, ClientError, FileContent};

/// How an artifact is imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportArtifact {
    /// Tag of the snapshot; as in the file when absent.
    pub tag: Option<String>,
    /// Import it whoever has signed it.
    pub trust_once: bool,
}

impl Client {
    /// `GET /v1/snapshots/:tag/artifact`: the snapshot as a file, piece by piece. It is whole when
    /// [`FileContent::length`] bytes have come.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn export_snapshot(&self, tag: &str) -> Result<FileContent, ClientError> {
        let path = format!("/v1/snapshots/{}/artifact", segment(tag));
        let response = self.send(self.request(Method::GET, &path)).await?;
        Ok(FileContent::new(response, self.target()))
    }

    /// `POST /v1/artifacts`: makes a snapshot of such a file, whose length need not be known.
    /// `sent` is told how many bytes are on their way, whenever some more are.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn import_snapshot(
        &self,
        how: &ImportArtifact,
        (content, length): (impl Read + Send + 'static, Option<u64>),
        sent: impl Fn(u64) + Send + 'static,
    ) -> Result<Snapshot, ClientError> {
        let mut request = self
            .request(Method::POST, "/v1/artifacts")
            .header("content-type", "application/octet-stream");
        if let Some(tag) = &how.tag {
            request = request.query(&[("tag", tag)]);
        }
        if how.trust_once {
            request = request.query(&[("trust_once", "true")]);
        }
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        self.json(request.body(pieces(content, sent))).await
    }

    /// `POST /v1/snapshots/:tag/push`: puts a snapshot into a registry.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn push_snapshot(
        &self,
        tag: &str,
        reference: &str,
    ) -> Result<PushedSnapshot, ClientError> {
        let body = PushSnapshot { reference: reference.to_owned() };
        self.post(&format!("/v1/snapshots/{}/push", segment(tag)), &body).await
    }

    /// `POST /v1/pulls`: makes a snapshot of what a registry has.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pull_snapshot(&self, body: &PullSnapshot) -> Result<Snapshot, ClientError> {
        self.post("/v1/pulls", body).await
    }

    /// `GET /v1/hub/snapshot`: what a registry has under a reference.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn hub_snapshot(&self, reference: &str) -> Result<HubSnapshot, ClientError> {
        let request = self.request(Method::GET, "/v1/hub/snapshot");
        self.json(request.query(&[("reference", reference)])).await
    }

    /// `GET /v1/hub/snapshots`: the snapshots in a registry, in repositories with `name` in theirs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn hub_search(&self, registry: &str, name: &str) -> Result<HubListing, ClientError> {
        let request = self.request(Method::GET, "/v1/hub/snapshots");
        self.json(request.query(&[("registry", registry), ("name", name)])).await
    }

    /// `GET /v1/keys`: the daemon's key and those that it trusts.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn keys(&self) -> Result<Keys, ClientError> {
        self.get("/v1/keys").await
    }

    /// `PUT /v1/keys/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trust_key(&self, name: &str, key: &str) -> Result<(), ClientError> {
        let body = TrustKey { key: key.to_owned() };
        let path = format!("/v1/keys/{}", segment(name));
        self.send(self.request(Method::PUT, &path).json(&body)).await.map(drop)
    }

    /// `DELETE /v1/keys/:name`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_key(&self, name: &str) -> Result<(), ClientError> {
        let path = format!("/v1/keys/{}", segment(name));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }
}
