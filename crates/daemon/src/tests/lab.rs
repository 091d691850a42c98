//! A daemon's routes with the tokens of three owners, without a socket.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response};
use forkd_engine::{Limits, fake};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::access::{Gate, Peer, Policy, Tokens};
use crate::app::Shared;
use crate::metrics::Metrics;
use crate::preview;
use crate::preview_url::PreviewUrl;
use crate::router::router;

/// Longest wait for an answer; never reached when all is well.
const SOON: Duration = Duration::from_secs(30);
/// Where previews are said to be.
pub(super) const PREVIEW_PORT: u16 = 8890;

/// What a test has made as one owner.
#[derive(Debug, Clone)]
pub(super) struct Things {
    pub(super) sandbox: String,
    /// The tag as its owner says it.
    pub(super) snapshot: String,
    pub(super) operation: String,
    pub(super) secret: String,
    pub(super) network: String,
}

pub(super) struct Lab {
    pub(super) router: Router,
    /// The listener's of previews.
    pub(super) previews: Router,
    /// What its sandboxes listen on.
    pub(super) ports: Arc<fake::Ports>,
    _directory: tempfile::TempDir,
}

/// An answer that was read to its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Answer {
    pub(super) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

/// The token of an owner; `ops` is an admin.
pub(super) fn token(owner: &str) -> String {
    format!("{owner}-0123456789abcdef")
}

impl Lab {
    pub(super) async fn new(limits: Limits) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = fake::config(directory.path(), limits).unwrap();
        let ports = Arc::new(fake::Ports::default());
        let engine = fake::engine(&config, &ports).await.unwrap();
        let line = |(owner, mark): (&str, &str)| format!("{owner} {} {mark}\n", token(owner));
        let lines = [("ann", ""), ("bob", ""), ("ops", "admin")].map(line).concat();
        let file = directory.path().join("tokens");
        std::fs::write(&file, lines).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let policy = Policy::Token(Arc::new(Tokens::read(&file).unwrap()));
        let shared = Shared::new(engine, Arc::new(Metrics::new()));
        let url = PreviewUrl::local(PREVIEW_PORT);
        let previews = preview::router(shared.clone(), url.clone());
        let router = router(shared.with_previews(url), Gate { policy, audit: None });
        Self { router, previews, ports, _directory: directory }
    }

    /// Asks, and gives the answer as it begins.
    pub(super) async fn begin(
        &self,
        owner: &str,
        method: &str,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Response<Body> {
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", token(owner)))
            .extension(Peer::Tcp("10.1.2.3:4".parse().unwrap()));
        let mut bytes = Vec::new();
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind);
            bytes = body;
        }
        let asked = self.router.clone().oneshot(request.body(Body::from(bytes)).unwrap());
        tokio::time::timeout(SOON, asked).await.expect("an answer in time").unwrap()
    }

    /// Asks, and reads the answer.
    pub(super) async fn ask(
        &self,
        owner: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        let body = body.map(|body| ("application/json", body.to_string().into_bytes()));
        read(self.begin(owner, method, path, body).await).await
    }

    /// A template, which is the snapshot and the operation, a sandbox of it, and a network that it
    /// is a member of.
    pub(super) async fn make(&self, owner: &str, tag: &str) -> Things {
        let create = json!({"tag": tag, "image": fake::IMAGE, "mem_size_mib": 64});
        let made = self.ask(owner, "POST", "/v1/snapshots", Some(create)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let network = tag.to_ascii_lowercase();
        let create = json!({"name": network});
        let made = self.ask(owner, "POST", "/v1/networks", Some(create)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let fork = json!({"snapshot_tag": tag, "network": {"join": [network]}});
        let forked = self.ask(owner, "POST", "/v1/sandboxes", Some(fork)).await;
        assert_eq!(forked.status, 201, "{forked:?}");
        let operations = self.ask(owner, "GET", "/v1/operations", None).await.body;
        let operation = operations.as_array().unwrap().last().unwrap();
        let secret = format!("OF_{}", tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        let value = Some(("application/octet-stream", b"sk-1".to_vec()));
        let set = self.begin(owner, "PUT", &format!("/v1/secrets/{secret}"), value).await;
        assert_eq!(set.status(), 204);
        Things {
            secret,
            network,
            sandbox: forked.body[0]["id"].as_str().unwrap().to_owned(),
            snapshot: tag.to_owned(),
            operation: operation["id"].as_str().unwrap().to_owned(),
        }
    }
}

/// The whole of an answer.
pub(super) async fn read(answer: Response<Body>) -> Answer {
    let status = answer.status().as_u16();
    let bytes = tokio::time::timeout(SOON, to_bytes(answer.into_body(), usize::MAX));
    let bytes = bytes.await.expect("an answer that ends").unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Answer { status, body: serde_json::from_slice(&bytes).unwrap_or(Value::String(text)) }
}
