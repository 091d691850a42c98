//! E2B's interfaces: where they are listened for, and how their clients find them.
//!
//! A client's key is a token of the token file, as for requests of forkd's own clients, and makes
//! things for the same owner; so an operator gives tokens of the form `e2b_` and hexadecimal digits
//! where old clients demand it. Besides there is one key of the daemon's own user, derived from a
//! secret of the state directory, so that a first try needs no file: whoever can read it could use
//! the daemon's socket.
//!
//! Does not do: answer. The crate `e2b` does.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::uri::Scheme;
use axum::middleware::Next;
use axum::response::Response;
use forkd_e2b::{
    Aliases, Config, Domain, E2b, FindCaller, NotPassed, Part, PassOn, Subject, ToPort,
};
use forkd_engine::{Engine, private_directory};
use forkd_types::SandboxId;

use crate::access::{self, AuditLog, Line, Peer, Tokens};
use crate::config::E2bConfig;
use crate::metrics::Metrics;
use crate::preview;

/// In the state directory.
const FOLDER: &str = "e2b";
/// What a shell must read so that clients find the daemon.
const ENVIRONMENT: &str = "env";

/// Where a daemon with this state directory says how clients find it, while it runs.
#[must_use]
pub fn environment_file(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER).join(ENVIRONMENT)
}

/// What was said of templates' names to a daemon with this state directory.
#[must_use]
pub fn aliases(state_dir: &Path) -> Aliases {
    Aliases::in_folder(&state_dir.join(FOLDER), BTreeMap::new())
}

/// What is listened for, and how clients see it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The listener's address.
    pub(crate) address: SocketAddr,
    /// It does TLS itself.
    pub(crate) tls: bool,
    /// Where the operator says that clients find it.
    pub(crate) domain: Option<Domain>,
}

impl Place {
    /// Ports of sandboxes have names below it.
    fn domain(&self) -> Domain {
        self.domain.clone().unwrap_or_else(|| Domain::local(self.address.port()))
    }

    /// What clients speak.
    fn scheme(&self) -> Scheme {
        if self.tls || self.domain.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// The lines that a shell must read. Under a domain clients find everything by its name alone.
    fn variables(&self, api_key: &str) -> String {
        let base = match &self.domain {
            Some(domain) => {
                format!("export E2B_DOMAIN={domain}\nexport E2B_API_URL=https://api.{domain}\n")
            }
            None => {
                let url = format!("{}://{}", self.scheme(), self.address);
                format!("export E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\n")
            }
        };
        format!("{base}export E2B_API_KEY={api_key}\n")
    }
}

/// Opens what answers there.
pub(crate) fn open(
    config: &E2bConfig,
    place: &Place,
    state_dir: &Path,
    engine: Engine,
    tokens: Option<Arc<Tokens>>,
) -> io::Result<E2b> {
    let folder = state_dir.join(FOLDER);
    private_directory(&folder).map_err(|error| io::Error::other(error.to_string()))?;
    let find_caller: FindCaller =
        Arc::new(move |given| tokens.as_ref().and_then(|tokens| tokens.caller(given)));
    let pass_on = passing_on(engine.clone(), place.scheme());
    let (templates, domain) = (config.templates.clone(), place.domain());
    E2b::open(Config { engine, folder, find_caller, templates, domain, pass_on })
}

/// Servers in sandboxes are reached as previews are.
fn passing_on(engine: Engine, scheme: Scheme) -> PassOn {
    Arc::new(move |ToPort { sandbox, port, host, request }| {
        let (engine, scheme) = (engine.clone(), scheme.clone());
        Box::pin(async move {
            let passed = preview::pass_on(&engine, &sandbox, port, request, &scheme, host).await;
            passed.map_err(|error| match error {
                preview::NotPassed::Engine(error) => NotPassed::Engine(error),
                preview::NotPassed::Server(error) => NotPassed::Server(error.to_string()),
            })
        })
    })
}

/// Where requests are written down and counted.
#[derive(Clone)]
pub(crate) struct Books {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Option<AuditLog>,
}

/// Counts a request of E2B's clients, and writes down who asked for what. Of a server in a sandbox
/// that is the sandbox alone: what is asked of it is content.
pub(crate) async fn write_down(
    State(books): State<Books>,
    request: Request,
    next: Next,
) -> Response {
    let (arrived, begun) = (SystemTime::now(), Instant::now());
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let mut who = access::describe(request.extensions().get::<Peer>());
    let response = next.run(request).await;
    let subject = response.extensions().get::<Subject>();
    let part = subject.map_or(Part::Unclear, |subject| subject.part);
    let status = response.status().as_u16();
    books.metrics.answered("any", part.name(), status, None);
    let Some(log) = &books.audit else { return response };
    if let Some(owner) = subject.and_then(|subject| subject.owner.as_ref()) {
        who["owner"] = owner.as_str().into();
    }
    let sandbox = subject.and_then(|subject| subject.sandbox.as_ref());
    let line = Line {
        time: arrived,
        request_id: "",
        who: &who,
        method: &method,
        path: if part == Part::Port { part.name() } else { &path },
        sandbox: sandbox.map(SandboxId::as_str),
        snapshot: None,
        status,
        code: None,
        duration: begun.elapsed(),
    };
    log.write(&line).await;
    response
}

/// The lines that a shell must read. Gone when this is dropped.
pub(crate) struct Environment(PathBuf);

impl Environment {
    pub(crate) fn write(state_dir: &Path, place: &Place, api_key: &str) -> io::Result<Self> {
        let path = environment_file(state_dir);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(place.variables(api_key).as_bytes())?;
        Ok(Self(path))
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn a_shell_is_told_one_address_or_one_domain() {
        let address: SocketAddr = "127.0.0.1:8891".parse().unwrap();
        let place = |tls, domain: Option<&str>| Place {
            address,
            tls,
            domain: domain.map(|domain| domain.parse().unwrap()),
        };
        let lines = place(false, None).variables("e2b_00");
        assert_eq!(
            lines,
            "export E2B_API_URL=http://127.0.0.1:8891\n\
             export E2B_SANDBOX_URL=http://127.0.0.1:8891\nexport E2B_API_KEY=e2b_00\n"
        );
        assert!(place(true, None).variables("k").contains("=https://127.0.0.1:8891\n"));
        assert_eq!(place(false, None).domain().to_string(), "localhost:8891");
        let below = place(false, Some("boxes.example.com"));
        assert_eq!(
            below.variables("e2b_00"),
            "export E2B_DOMAIN=boxes.example.com\n\
             export E2B_API_URL=https://api.boxes.example.com\nexport E2B_API_KEY=e2b_00\n"
        );
        assert_eq!(below.scheme(), Scheme::HTTPS, "a proxy does it");
    }

    /// Answers as if every request were one for a server in a sandbox.
    async fn server(request: Request) -> Response {
        let part = if request.uri().path() == "/files" { Part::Agent } else { Part::Port };
        let sandbox = "sb-0123456789ab".parse().ok();
        let mut response = Response::default();
        let owner = "ann".parse().ok();
        response.extensions_mut().insert(Subject { part, owner, sandbox });
        response
    }

    #[tokio::test]
    async fn requests_are_written_down_with_their_sandbox_and_without_what_a_server_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let metrics = Arc::new(Metrics::new());
        let audit = Some(AuditLog::open(&path).unwrap());
        let books = Books { metrics, audit };
        let app = axum::Router::new()
            .fallback(server)
            .layer(axum::middleware::from_fn_with_state(books, write_down));
        for uri in ["/files?path=/secret", "/secret?a=b"] {
            let request = Request::builder().method("PUT").uri(uri);
            let request = request.body(axum::body::Body::empty()).unwrap();
            app.clone().oneshot(request).await.unwrap();
        }
        drop(app);
        let begun = Instant::now();
        let lines = loop {
            let text = fs::read_to_string(&path).unwrap();
            assert!(!text.contains("secret"), "{text}");
            if text.lines().count() == 2 {
                break text;
            }
            assert!(begun.elapsed().as_secs() < 10, "{text}");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        };
        let mut lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        let (file, port): (serde_json::Value, serde_json::Value) =
            (lines.next().unwrap(), lines.next().unwrap());
        assert_eq!((&file["path"], &port["path"]), (&"/files".into(), &"e2b port".into()));
        for line in [file, port] {
            assert_eq!(line["sandbox"], "sb-0123456789ab");
            assert_eq!((&line["who"]["owner"], &line["method"]), (&"ann".into(), &"PUT".into()));
            assert_eq!(line["status"], 200);
        }
    }
}
