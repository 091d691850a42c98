//! Goal: whatever route of the control interface is asked for something of another owner, the
//! answer is 404 and the same, word for word, as for something that was never there.
//!
//! Method: every route of the router's table is asked with ann's key for a sandbox or a snapshot
//! of the daemon's user, and for one that nobody has. Its owner asks the same and is not answered
//! 404, so nothing passes because the request was refused for another reason.
//!
//! What is answered in place of the agent and the interpreter of a sandbox, and servers in it, ask
//! for its token, whoever comes. So there ann comes with her key and the tokens of a sandbox of her
//! own, and must be answered as somebody who has nothing. Requests are again those of the tables.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ANN, Lab, SERVED_PORT};
use crate::interpreter::INTERPRETER_PORT;
use crate::target::ENVD_PORT;
use crate::{control, envd, interpreter};

const NEVER: &str = "sb00000000dead";

/// Methods and paths of all routes.
pub(super) fn routes() -> Vec<(&'static str, &'static str)> {
    control::ROUTES.iter().map(|route| (route.method, route.path)).collect()
}

/// What ann is answered, without the name that she has said.
async fn told(lab: &Lab, what: &str, body: Value, name: &str) -> (u16, String) {
    let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
    let answer = lab.ask(&what.replace("{id}", name), &[("x-api-key", ANN)], body).await;
    let headers: Vec<_> =
        answer.headers.iter().filter(|(name, _)| *name != "content-length").collect();
    let text = format!("{headers:?} {}", answer.body);
    (answer.status, text.replace(&name.replace("%2F", "/"), "NAME"))
}

#[tokio::test]
async fn every_route_answers_for_what_is_anothers_as_for_what_is_not_there() {
    let lab = Lab::new().await;
    let owner = lab.engine.caller().owner().clone();
    for (number, (method, path)) in routes().into_iter().enumerate() {
        let what = format!("{method} {path}");
        let body = match path.rsplit('/').next().unwrap() {
            "timeout" => json!({"timeout": 30}),
            _ if method == "GET" || method == "DELETE" => Value::Null,
            _ => json!({}),
        };
        // New for each: its owner's request may end it.
        let (id, _) = lab.sandbox(json!({})).await;
        let (mine, never) = (format!("mine-{number:02}"), format!("none-{number:02}"));
        let keep = format!("POST /sandboxes/{id}/snapshots");
        assert_eq!(lab.control(&keep, json!({"name": mine})).await.status, 201);
        let pairs = match path {
            _ if path.starts_with("/templates/") => vec![
                (mine.clone(), never.clone()),
                (format!("{owner}%2F{mine}"), format!("{owner}%2F{never}")),
            ],
            _ if path.contains("{id}") => vec![(id.clone(), NEVER.to_owned())],
            _ => Vec::new(),
        };
        for (foreign, never) in &pairs {
            let [foreign, never] = [
                told(&lab, &what, body.clone(), foreign).await,
                told(&lab, &what, body.clone(), never).await,
            ];
            assert_eq!(foreign, never, "{what}");
            assert_eq!(foreign.0, 404, "{what}: {}", foreign.1);
        }
        if let Some((own, _)) = pairs.first() {
            let own = lab.control(&what.replace("{id}", own), body).await;
            assert_ne!(own.status, 404, "{what} of one's own: {}", own.body);
        } else if method == "GET" {
            let (status, text) = told(&lab, &what, Value::Null, "").await;
            assert_eq!(status, 200, "{what}");
            assert!(!text.contains(&id) && !text.contains(&mine), "{what}: {text}");
        } else {
            assert!(["/sandboxes", "/v2/sandboxes"].contains(&path), "{what}: ask for what?");
            let [foreign, never] = [&mine, &never].map(|name| json!({"templateID": name}));
            let foreign = told(&lab, &what, foreign, &mine).await;
            let never = told(&lab, &what, never, &format!("none-{number:02}")).await;
            assert_eq!(foreign, never, "{what}");
            assert_eq!(foreign.0, 404, "{what}: {}", foreign.1);
        }
        lab.control(&format!("DELETE /sandboxes/{id}"), Value::Null).await;
    }
}

/// A request to a port of a sandbox.
#[derive(Debug)]
struct AtPort {
    port: u16,
    method: &'static str,
    path: String,
}

/// All that is answered at ports of a sandbox.
fn requests_at_ports() -> Vec<AtPort> {
    let mut requests = Vec::new();
    let mut add = |port, method, path: String| requests.push(AtPort { port, method, path });
    for route in envd::ROUTES {
        let query = if route.path == "/files" { "?path=/tmp/x" } else { "" };
        add(ENVD_PORT.get(), route.method, format!("{}{query}", route.path));
    }
    for route in interpreter::ROUTES {
        add(INTERPRETER_PORT.get(), route.method, route.path.replace("{id}", "any"));
    }
    for method in ["GET", "POST", "PUT", "DELETE"] {
        add(SERVED_PORT, method, "/page".to_owned());
    }
    assert!(requests.len() > 25, "{requests:?}");
    requests
}

impl AtPort {
    /// Whether it is answered to whoever knows the sandbox's address, as E2B does.
    fn is_open(&self, traffic_is_public: bool) -> bool {
        let is_agent = self.port == ENVD_PORT.get();
        match self.path.as_str() {
            "/health" if is_agent => true,
            "/execute" => false,
            _ => traffic_is_public && !is_agent,
        }
    }

    /// Status, headers and, of a refusal, the body.
    async fn ask(&self, lab: &Lab, id: &str, more: &[(&str, &str)]) -> (u16, String) {
        let port = self.port.to_string();
        let mut request = Request::builder().method(self.method).uri(&self.path);
        let json = ("content-type", "application/json");
        let to = [("e2b-sandbox-id", id), ("e2b-sandbox-port", &*port), json];
        for (name, value) in to.iter().chain(more) {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from("{}")).unwrap();
        let answer = lab.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), format!("{:?}", answer.headers()));
        // Others may be streams that go on.
        if !matches!(status, 401 | 403 | 502) {
            return (status, headers);
        }
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, format!("{headers} {}", String::from_utf8_lossy(&body)))
    }
}

/// What opens a sandbox of the caller with this key.
async fn tokens(lab: &Lab, key: &str, body: Value) -> (String, Vec<(&'static str, String)>) {
    let made = lab.ask("POST /v2/sandboxes", &[("x-api-key", key)], body.to_string().into()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let text = |name: &str| made.body[name].as_str().map(str::to_owned);
    let named = [
        ("x-access-token", text("envdAccessToken")),
        ("e2b-traffic-access-token", text("trafficAccessToken")),
        ("x-api-key", Some(key.to_owned())),
    ];
    let tokens = named.into_iter().filter_map(|(name, token)| Some((name, token?))).collect();
    (text("sandboxID").unwrap(), tokens)
}

#[tokio::test]
async fn the_tokens_of_ones_own_sandbox_open_nothing_of_anothers() {
    let lab = Lab::new().await;
    lab.build_shared("shared").await;
    for public in [false, true] {
        let wish =
            json!({"templateID": "daemon/shared", "network": {"allowPublicTraffic": public}});
        let (theirs, right) = tokens(&lab, &lab.key, wish.clone()).await;
        let (hers, wrong) = tokens(&lab, ANN, wish).await;
        let [right, wrong]: [Vec<(&str, &str)>; 2] =
            [&right, &wrong].map(|all| all.iter().map(|(name, token)| (*name, &**token)).collect());
        for request in requests_at_ports() {
            let what = format!("{request:?}, public: {public}");
            let [foreign, nobodys] =
                [request.ask(&lab, &theirs, &wrong).await, request.ask(&lab, &theirs, &[]).await];
            let refused = |status: u16| matches!(status, 401 | 403);
            if !request.is_open(public) {
                assert_eq!(foreign, nobodys, "{what}");
                assert!(refused(foreign.0), "{what}: {foreign:?}");
            }
            let (status, said) = request.ask(&lab, &theirs, &right).await;
            assert!(!refused(status) && status != 502, "{what}: {status} {said}");
            let (status, said) = request.ask(&lab, &hers, &wrong).await;
            assert!(!refused(status) && status != 502, "{what} of her own: {status} {said}");
            // One that is not there has the same answer, whoever asks.
            let [foreign, nobodys] = [&wrong[..], &[]].map(|with| request.ask(&lab, NEVER, with));
            let (foreign, nobodys) = (foreign.await, nobodys.await);
            assert_eq!((foreign.0, &foreign), (502, &nobodys), "{what}");
        }
    }
}
