//! The gate that every request goes through.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use forkd_api::ErrorCode;
use forkd_engine::{Caller, Role};
use forkd_types::Owner;
use serde_json::json;

use super::audit::{AuditLog, Line};
use super::tokens::Tokens;
use crate::failure::Failure;

/// In which relation to us the page is that sends a request, as browsers say.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this machine, as the kernel tells it.
    Unix {
        /// Its user.
        uid: u32,
        /// Its number, where the kernel knows it.
        pid: Option<i32>,
    },
    /// An address.
    Tcp(SocketAddr),
}

/// What a listener demands of a request.
#[derive(Debug, Clone)]
pub(crate) enum Policy {
    /// A user of this machine. Without `others` only the daemon's own and root.
    Users { daemon: u32, others: bool },
    /// Everybody, as the daemon's own user. The request is for a name of this machine: a web page
    /// whose name was made to resolve to this machine comes under that name.
    Loopback,
    /// One of these tokens.
    Token(Arc<Tokens>),
}

/// The id by which the daemon's log knows a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// A listener's policy, with the place where it is written down what came through.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) policy: Policy,
    pub(crate) audit: Option<AuditLog>,
}

/// Lets a request in or answers that it may not, and writes it down.
pub(crate) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/healthz" {
        return next.run(request).await;
    }
    let (arrived, begun) = (SystemTime::now(), Instant::now());
    let method = request.method().to_string();
    let id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let mut who = describe(request.extensions().get::<Peer>());
    let admitted = match refuse_cross_site(request.headers()) {
        Some(failure) => Err(failure),
        None => gate.policy.identify(&request, &mut who),
    };
    let response = match admitted {
        Ok(caller) => {
            who["owner"] = caller.owner().as_str().into();
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(failure) => refuse(failure),
    };
    if let Some(log) = gate.audit.as_ref().filter(|_| path != "/metrics") {
        let subject = |kind| segment_after(&path, kind);
        let code = response.extensions().get::<ErrorCode>().map(|code| code.name());
        let line = Line {
            time: arrived,
            request_id: &id,
            who: &who,
            method: &method,
            path: &path,
            sandbox: subject("sandboxes"),
            snapshot: subject("snapshots"),
            status: response.status().as_u16(),
            code,
            duration: begun.elapsed(),
        };
        log.write(&line).await;
    }
    response
}

fn refuse(failure: Failure) -> Response {
    let mut response = failure.into_response();
    // Who is not let in keeps no place: HTTP/1 closes the connection after this answer.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if response.status() == axum::http::StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// In `/v1/KIND/NAME/...`, the name.
fn segment_after<'a>(path: &'a str, kind: &str) -> Option<&'a str> {
    let mut segments = path.strip_prefix("/v1/")?.split('/');
    (segments.next()? == kind).then(|| segments.next()).flatten().filter(|name| !name.is_empty())
}

/// Who is at the other end, for the audit log.
pub(crate) fn describe(peer: Option<&Peer>) -> serde_json::Value {
    match peer {
        Some(Peer::Unix { uid, pid }) => json!({"socket": "unix", "uid": uid, "pid": pid}),
        Some(Peer::Tcp(address)) => json!({"socket": "tcp", "address": address.to_string()}),
        None => json!({}),
    }
}

impl Policy {
    /// Who asks, or why they may not. What is known besides is added to `who`.
    fn identify(&self, request: &Request, who: &mut serde_json::Value) -> Result<Caller, Failure> {
        match self {
            Self::Users { daemon, others } => {
                user(request.extensions().get::<Peer>(), *daemon, *others)
            }
            Self::Loopback => match refuse_other_host(request) {
                None => Ok(Caller::default()),
                Some(failure) => Err(failure),
            },
            Self::Token(tokens) => match bearer(request).and_then(|given| tokens.find(given)) {
                Some(token) => {
                    who["token"] = token.name.as_str().into();
                    Ok(token.caller.clone())
                }
                None => {
                    let text = match request.headers().contains_key(AUTHORIZATION) {
                        true => "the request's token is not known",
                        false => "the request has no token",
                    };
                    Err(Failure::new(ErrorCode::Unauthorized, text))
                }
            },
        }
    }
}

/// The daemon's user and root are one owner, who is an admin; any other user is one of its own.
fn user(peer: Option<&Peer>, daemon: u32, others: bool) -> Result<Caller, Failure> {
    match peer {
        Some(Peer::Unix { uid, .. }) if *uid == daemon || *uid == 0 => Ok(Caller::default()),
        Some(Peer::Unix { uid, .. }) if others => Ok(Caller::new(Owner::of_user(*uid), Role::User)),
        Some(Peer::Unix { uid, .. }) => {
            let text = format!("the daemon belongs to user {daemon}, not to user {uid}");
            Err(Failure::new(ErrorCode::PeerRefused, text))
        }
        _ => Err(Failure::new(ErrorCode::PeerRefused, "the peer is not known")),
    }
}

/// Refuses what a web page sends, unless it is one of our own, of which there are none: whoever
/// looks at a page has not asked for anything here. Browsers say both, or with a request that
/// changes something at least the origin; programs say neither. So a request without a body needs
/// no content type to be safe.
fn refuse_cross_site(headers: &HeaderMap) -> Option<Failure> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let from = match (text(SEC_FETCH_SITE), text(ORIGIN)) {
        (None | Some("same-origin" | "none"), None) => return None,
        (None | Some("same-origin" | "none"), Some(origin)) => {
            let ours = text(HOST).is_some_and(|host| {
                origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host))
            });
            if ours {
                return None;
            }
            origin
        }
        (Some(site), origin) => origin.unwrap_or(site),
    };
    let shown: String = from.chars().take(80).collect();
    let text = format!("the request comes from a web page: `{shown}`");
    Some(Failure::new(ErrorCode::CrossSite, text))
}

fn refuse_other_host(request: &Request) -> Option<Failure> {
    let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let host = header.or_else(|| request.uri().authority().map(|name| name.as_str()));
    match host {
        Some(host) if is_loopback_host(host) => None,
        _ => {
            let shown = host.unwrap_or("no name").chars().take(80).collect::<String>();
            let text = format!("the request came for the host `{shown}`, not for this machine");
            Some(Failure::new(ErrorCode::HostRefused, text))
        }
    }
}

fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Whether `host`, with or without port, is a name of this machine that only this machine can use.
fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::{get, post};
    use std::os::unix::fs::PermissionsExt as _;
    use tower::ServiceExt as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn tokens() -> Policy {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("ci {TOKEN}")).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        Policy::Token(Arc::new(Tokens::read(file.path()).unwrap()))
    }

    fn app(gate: Gate) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/v1/sandboxes/{id}/exec", post(|| async { "ran" }))
            .fallback(|| async { Failure::new(ErrorCode::RouteNotFound, "no") })
            .layer(from_fn_with_state(gate, admit))
    }

    async fn ask(app: &Router, path: &str, peer: Peer, header: Option<(&str, &str)>) -> Response {
        let mut request = Request::post(path).extension(peer);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    const FAR: Peer =
        Peer::Tcp(SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3)), 9));
    const EXEC: &str = "/v1/sandboxes/sb-1/exec";

    #[tokio::test]
    async fn without_its_token_every_route_but_health_is_closed() {
        let app = app(Gate { policy: tokens(), audit: None });
        for header in [
            None,
            Some(("authorization", "Bearer wrong-0123456789")),
            Some(("authorization", TOKEN)),
            Some(("authorization", "Basic 0123456789abcdef")),
            Some(("x-token", TOKEN)),
        ] {
            for path in [EXEC, "/openapi.json", "/nowhere", "/metrics"] {
                let answer = ask(&app, path, FAR, header).await;
                assert_eq!(answer.status(), 401, "{path} {header:?}");
                assert_eq!(answer.headers()[WWW_AUTHENTICATE], "Bearer");
                assert_eq!(answer.headers()[CONNECTION], "close");
            }
        }
        for given in [format!("Bearer {TOKEN}"), format!("bearer  {TOKEN} ")] {
            let answer = ask(&app, EXEC, FAR, Some(("authorization", &given))).await;
            assert_eq!(answer.status(), 200, "{given}");
        }
        let health = Request::get("/healthz").body(Body::empty()).unwrap();
        assert_eq!(app.oneshot(health).await.unwrap().status(), 200);
    }

    #[tokio::test]
    async fn the_daemons_user_and_root_come_in_and_others_only_if_they_may() {
        for (others, status_of_others) in [(false, 403), (true, 200)] {
            let app = app(Gate { policy: Policy::Users { daemon: 1000, others }, audit: None });
            for (uid, status) in [(1000, 200), (0, 200), (1001, status_of_others)] {
                let answer = ask(&app, EXEC, Peer::Unix { uid, pid: None }, None).await;
                assert_eq!(answer.status(), status, "user {uid}");
            }
            assert_eq!(ask(&app, EXEC, FAR, None).await.status(), 403);
        }
    }

    #[test]
    fn the_daemons_user_and_root_are_the_same_admin_and_others_are_owners_of_their_own() {
        let caller = |uid| user(Some(&Peer::Unix { uid, pid: None }), 1000, true).unwrap();
        assert_eq!((caller(1000), caller(0)), (Caller::default(), Caller::default()));
        assert_eq!(caller(1001), Caller::new(Owner::of_user(1001), Role::User));
    }

    #[tokio::test]
    async fn on_loopback_a_request_for_another_host_is_refused() {
        let app = app(Gate { policy: Policy::Loopback, audit: None });
        for (host, status) in [("localhost:8889", 200), ("evil.example", 403)] {
            assert_eq!(ask(&app, EXEC, FAR, Some(("host", host))).await.status(), status);
        }
        assert_eq!(ask(&app, EXEC, FAR, None).await.status(), 403);
    }

    #[tokio::test]
    async fn a_web_page_cannot_ask_for_anything_whichever_way_in_it_finds() {
        for policy in [Policy::Loopback, tokens(), Policy::Users { daemon: 1000, others: true }] {
            let app = app(Gate { policy, audit: None });
            for (name, value, status) in [
                ("sec-fetch-site", "cross-site", 403),
                ("sec-fetch-site", "same-site", 403),
                ("origin", "https://evil.example", 403),
                ("origin", "http://localhost:3000", 403),
                ("origin", "null", 403),
                ("origin", "http://localhost:8889", 200),
                ("sec-fetch-site", "none", 200),
                ("x-other", "x", 200),
            ] {
                let request = Request::post(EXEC)
                    .header("host", "localhost:8889")
                    .header("authorization", format!("Bearer {TOKEN}"))
                    .header(name, value);
                let local = Peer::Unix { uid: 1000, pid: None };
                let request = request.extension(local).body(Body::empty()).unwrap();
                let answer = app.clone().oneshot(request).await.unwrap();
                assert_eq!(answer.status(), status, "{name}: {value}");
            }
        }
    }

    #[test]
    fn only_names_of_the_loopback_are_accepted() {
        for good in ["localhost", "LOCALHOST:8889", "127.0.0.1:8889", "[::1]:8889", "[::1]"] {
            assert!(is_loopback_host(good), "{good}");
        }
        for bad in ["", "evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]:80"] {
            assert!(!is_loopback_host(bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn the_audit_log_says_who_did_what_and_what_came_of_it_and_no_token() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Some(AuditLog::open(&path).unwrap());
        let app = app(Gate { policy: tokens(), audit });
        let token = format!("Bearer {TOKEN}");
        ask(&app, &format!("{EXEC}?secret=1"), FAR, Some(("authorization", &token))).await;
        ask(&app, "/v1/snapshots/t", FAR, Some(("authorization", "Bearer abc"))).await;
        ask(&app, "/metrics", FAR, None).await;
        drop(app);
        let begun = Instant::now();
        let text = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.lines().count() == 2 {
                break text;
            }
            assert!(begun.elapsed().as_secs() < 10, "{text}");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        };
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(
            !text.contains(TOKEN) && !text.contains("secret") && !text.contains("abc"),
            "{text}"
        );
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            (&lines[0]["who"]["token"], &lines[0]["who"]["owner"]),
            (&json!("ci"), &json!("ci"))
        );
        assert_eq!(lines[0]["who"]["address"], "10.1.2.3:9");
        assert_eq!((&lines[0]["sandbox"], &lines[0]["status"]), (&json!("sb-1"), &json!(200)));
        assert_eq!(
            (&lines[1]["snapshot"], &lines[1]["code"]),
            (&json!("t"), &json!("unauthorized"))
        );
        assert!(lines[1]["who"].get("token").is_none());
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
    }
}
