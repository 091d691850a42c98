//! All routes over an engine whose guests say yes.

mod checked;
mod files;
mod others_own;
mod ports_and_pauses;
mod required;
mod traps;
mod watchers_and_usage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, Request};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use forkd_engine::{
    Caller, Engine, EngineError, Limits, NoProgress, Role, TemplateImage, TemplateRequest, fake,
};
use forkd_types::{ByteCount, MachineSize};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use self::checked::{Seen, checked};
use crate::{Config, E2b, NotPassed, ToPort};

const SOON: Duration = Duration::from_secs(30);
const SERVED_PORT: u16 = 3000;
const ANN: &str = "e2b_00112233445566778899";

/// What listens in every sandbox: on one port a server that says what it was asked.
fn server(asked: ToPort) -> Result<Response, NotPassed> {
    if asked.port.get() != SERVED_PORT {
        let (id, port) = (asked.sandbox, asked.port.get());
        return Err(NotPassed::Engine(EngineError::PortClosed { id, port }));
    }
    let names: Vec<&str> = asked.request.headers().keys().map(HeaderName::as_str).collect();
    let said = json!({
        "sandbox": asked.sandbox.to_string(), "host": asked.host, "headers": names,
        "uri": asked.request.uri().to_string(),
    });
    Ok(Json(said).into_response())
}

/// E2B's interfaces with one template, `small`, which `base` stands for.
struct Lab {
    router: Router,
    key: String,
    seen: Seen,
    engine: Engine,
    ports: Arc<fake::Ports>,
    directory: tempfile::TempDir,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

#[derive(PartialEq)]
enum Shared {
    Yes,
    No,
}

async fn build(engine: &Engine, name: &str, shared: Shared) {
    let request = TemplateRequest {
        tag: name.parse().unwrap(),
        image: TemplateImage::Named(fake::IMAGE.to_owned()),
        size: MachineSize::new(ByteCount::from_mib(64), 1).unwrap(),
        cpu: forkd_types::CpuModel::Host,
        warm: Vec::new(),
        shared: shared == Shared::Yes,
        private: false,
    };
    engine.build_template(request, Arc::new(NoProgress)).await.unwrap();
}

impl Lab {
    async fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = fake::config(directory.path(), Limits::default()).unwrap();
        let ports = Arc::default();
        let engine = fake::engine(&config, &ports).await.unwrap();
        build(&engine, "small", Shared::No).await;
        let folder = directory.path().join("e2b");
        std::fs::create_dir(&folder).unwrap();
        let ann = Caller::new("ann".parse().unwrap(), Role::User);
        let e2b = E2b::open(Config {
            engine: engine.clone(),
            folder,
            find_caller: Arc::new(move |key| (key == ANN.as_bytes()).then(|| ann.clone())),
            templates: BTreeMap::from([("base".to_owned(), "small".parse().unwrap())]),
            domain: "e2b.test".parse().unwrap(),
            pass_on: Arc::new(|asked| Box::pin(async move { server(asked) })),
        });
        let e2b = e2b.unwrap();
        let (key, seen) = (e2b.api_key(), Seen::default());
        let router = checked(e2b.router(), &seen);
        Self { router, key, seen, engine, ports, directory }
    }

    /// A template that anybody may start from.
    async fn build_shared(&self, name: &str) {
        build(&self.engine, name, Shared::Yes).await;
    }

    /// Where E2B's interfaces keep what they keep.
    fn folder(&self) -> std::path::PathBuf {
        self.directory.path().join("e2b")
    }

    async fn ask(&self, what: &str, headers: &[(&str, &str)], body: Body) -> Answer {
        let (method, uri) = what.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let asked = self.router.clone().oneshot(request.body(body).unwrap());
        let answer = tokio::time::timeout(SOON, asked).await.unwrap().unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Answer { status, headers, body }
    }

    async fn control(&self, what: &str, body: Value) -> Answer {
        let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
        self.ask(what, &[("x-api-key", &self.key)], body).await
    }

    /// A sandbox: its id and its token.
    async fn sandbox(&self, more: Value) -> (String, String) {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.control("POST /v2/sandboxes", body).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
        (text("sandboxID"), text("envdAccessToken"))
    }

    async fn data(&self, what: &str, id: &str, more: &[(&str, &str)], body: Body) -> Answer {
        let mut headers = vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", "49983")];
        headers.extend(more);
        self.ask(what, &headers, body).await
    }
}

#[tokio::test]
async fn without_a_known_key_nothing_of_the_control_interface_answers() {
    let lab = Lab::new().await;
    for what in [
        "POST /v2/sandboxes",
        "GET /v2/sandboxes",
        "DELETE /sandboxes/sb0123456789ab",
        "POST /sandboxes/sb0123456789ab/fork",
        "DELETE /templates/small",
    ] {
        for headers in [&[][..], &[("x-api-key", "e2b_00")], &[("x-access-token", &*lab.key)]] {
            let answer = lab.ask(what, headers, "{\"templateID\":\"base\"}".into()).await;
            assert_eq!(answer.status, 401, "{what} {headers:?}");
            assert_eq!(answer.body["code"], 401);
        }
    }
    assert!(lab.engine.sandboxes().is_empty());
}

#[tokio::test]
async fn a_create_that_is_repeated_with_its_key_makes_one_sandbox() {
    let lab = Lab::new().await;
    let create = |key: &'static str, body: Value| {
        let headers = [("x-api-key", lab.key.clone()), ("idempotency-key", key.to_owned())];
        let (lab, body) = (&lab, body.to_string());
        async move {
            let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
            lab.ask("POST /v2/sandboxes", &headers, body.into()).await
        }
    };
    let body = || json!({"templateID": "base", "timeout": 60});
    let (one, two) = tokio::join!(create("a-1", body()), create("a-1", body()));
    assert_eq!((one.status, two.status), (201, 201), "{} {}", one.body, two.body);
    assert_eq!(one.body, two.body);
    assert_eq!(lab.engine.sandboxes().len(), 1);
    let other = create("a-1", json!({"templateID": "base", "timeout": 61})).await;
    assert_eq!(other.status, 409, "{}", other.body);
    let wrong = create("A", body()).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    assert_eq!(create("a-2", body()).await.status, 201);
    assert_eq!(lab.engine.sandboxes().len(), 2);
}

#[tokio::test]
async fn a_sandbox_is_made_found_and_ended_as_clients_expect() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"metadata": {"a": "b"}, "timeout": 60})).await;
    let detail = lab.control(&format!("GET /sandboxes/{id}"), Value::Null).await;
    let fields = required::needed("ListedSandbox");
    assert_eq!(fields.len(), 10);
    for field in fields {
        assert!(!detail.body[field].is_null(), "{field} is missing in {}", detail.body);
    }
    assert_eq!(detail.body["templateID"], "small");
    assert_eq!(detail.body["alias"], "base");
    assert_eq!(detail.body["state"], "running");
    let list = lab.control("GET /v2/sandboxes?metadata=a%3Db", Value::Null).await;
    assert_eq!(list.body[0]["sandboxID"], *id);
    let other = lab.control("GET /v2/sandboxes?metadata=a%3Dc", Value::Null).await;
    assert_eq!(other.body, json!([]));
    let ended = lab.control(&format!("DELETE /sandboxes/{id}"), Value::Null).await;
    assert_eq!(ended.status, 204);
    let again = lab.control(&format!("DELETE /sandboxes/{id}"), Value::Null).await;
    assert_eq!((again.status, &again.body["code"]), (404, &json!(404)));
}

#[tokio::test]
async fn connecting_never_shortens_a_life_and_a_timeout_may() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"timeout": 600})).await;
    let end = async || {
        let detail = lab.control(&format!("GET /sandboxes/{id}"), Value::Null).await;
        detail.body["endAt"].as_str().unwrap().to_owned()
    };
    let first = end().await;
    let connect = format!("POST /v2/sandboxes/{id}/connect");
    let connected = lab.control(&connect, json!({"timeout": 5})).await;
    assert_eq!((connected.status, end().await), (200, first.clone()));
    lab.control(&connect, json!({"timeout": 6000})).await;
    let longer = end().await;
    assert!(longer > first);
    let set = format!("POST /sandboxes/{id}/timeout");
    assert_eq!(lab.control(&set, json!({"timeout": 30})).await.status, 204);
    assert!(end().await < first);
}

#[tokio::test]
async fn a_paused_sandbox_is_paused_on_one_side_and_not_found_on_the_other() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    assert_eq!(lab.data("GET /health", &id, &[], Body::empty()).await.status, 204);
    let pause = format!("POST /sandboxes/{id}/pause");
    assert_eq!(lab.control(&pause, json!({})).await.status, 204);
    assert_eq!(lab.control(&pause, json!({})).await.status, 409);
    let gone = lab.data("GET /health", &id, &[], Body::empty()).await;
    assert_eq!(gone.status, 502);
    let body = json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
    assert_eq!(gone.body, body);
    let listed = lab.control("GET /v2/sandboxes?state=paused", Value::Null).await;
    assert_eq!(listed.body[0]["sandboxID"], *id);
    let connect = format!("POST /v2/sandboxes/{id}/connect");
    assert_eq!(lab.control(&connect, json!({"timeout": 60})).await.status, 201);
    assert_eq!(lab.data("GET /health", &id, &[], Body::empty()).await.status, 204);
}

#[tokio::test]
async fn a_sandbox_opens_to_its_own_token_alone() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let (other, _) = lab.sandbox(json!({})).await;
    let json = ("content-type", "application/json");
    let list = "POST /process.Process/List";
    let with = |token| [json, ("x-access-token", token)];
    let good = lab.data(list, &id, &with(&token), "{}".into()).await;
    assert_eq!((good.status, good.body), (200, json!({"processes": []})));
    for (id, token) in [(&other, &*token), (&id, ""), (&id, &lab.key)] {
        let bad = lab.data(list, id, &with(token), "{}".into()).await;
        assert_eq!((bad.status, &bad.body["code"]), (401, &json!("unauthenticated")));
    }
    let nobody = lab.data(list, "nobody", &with(&token), "{}".into()).await;
    assert_eq!(nobody.status, 502);
}

#[tokio::test]
async fn a_port_that_is_not_served_says_so_and_not_that_the_sandbox_is_gone() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let headers = [("e2b-sandbox-id", &*id), ("e2b-sandbox-port", "3001")];
    let closed = lab.ask("GET /health", &headers, Body::empty()).await;
    assert_eq!(closed.status, 502);
    assert!(closed.body["message"].as_str().unwrap().contains("port is not open"));
    assert_eq!(closed.body["port"], 3001);
}

#[tokio::test]
async fn what_others_own_does_not_exist() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    for what in [
        format!("GET /sandboxes/{id}"),
        format!("DELETE /sandboxes/{id}"),
        format!("POST /sandboxes/{id}/fork"),
        format!("POST /v2/sandboxes/{id}/connect"),
    ] {
        let answer = lab.ask(&what, &[("x-api-key", ANN)], Body::empty()).await;
        assert_eq!(answer.status, 404, "{what}");
    }
    let list = lab.ask("GET /v2/sandboxes", &[("x-api-key", ANN)], Body::empty()).await;
    assert_eq!((list.status, list.body), (200, json!([])));
    assert_eq!(lab.engine.sandboxes().len(), 1);
}

#[tokio::test]
async fn what_is_refused_starts_nothing_and_is_not_asked_again() {
    let lab = Lab::new().await;
    for (body, status) in [
        (json!({"templateID": "none"}), 404),
        (json!({"templateID": "base", "autoPauseMemory": false}), 400),
        (json!({"templateID": "base", "timeout": 0}), 400),
        (json!({"templateID": "base", "network": {"rules": {"a.b": []}}}), 400),
        (json!({"timeout": 5}), 400),
    ] {
        let answer = lab.control("POST /v2/sandboxes", body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert_eq!(answer.headers["should-retry"], "false");
    }
    assert!(lab.engine.sandboxes().is_empty());
}

#[tokio::test]
async fn forks_are_sandboxes_of_their_own_and_leave_no_snapshot() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({"metadata": {"a": "b"}})).await;
    let fork = format!("POST /sandboxes/{id}/fork");
    let forked = lab.control(&fork, json!({"count": 2, "timeout": 60})).await;
    assert_eq!(forked.status, 201, "{}", forked.body);
    let forks = forked.body.as_array().unwrap();
    assert_eq!(forks.len(), 2);
    for fork in forks {
        assert_ne!(fork["sandbox"]["sandboxID"], *id, "{fork}");
        assert_ne!(fork["sandbox"]["envdAccessToken"], *token);
    }
    let listed = lab.control("GET /v2/sandboxes?metadata=a%3Db", Value::Null).await;
    assert_eq!(listed.body.as_array().unwrap().len(), 3);
    assert_eq!(lab.engine.snapshots().len(), 1, "the template");
    assert_eq!(lab.control(&fork, json!({"count": 0})).await.status, 400);
}

#[tokio::test]
async fn a_snapshot_of_a_sandbox_is_removed_and_a_template_is_not() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let named = json!({"name": "mine"});
    let keep = format!("POST /sandboxes/{id}/snapshots");
    let made = lab.control(&keep, named.clone()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(lab.control(&keep, named).await.status, 409, "a name is used once");
    for template in ["base", "small", "small%3Adefault"] {
        let refused = lab.control(&format!("DELETE /templates/{template}"), Value::Null).await;
        assert_eq!(refused.status, 403, "{template}: {}", refused.body);
        assert!(refused.body.to_string().contains("forkd snapshot rm small"), "{}", refused.body);
    }
    assert_eq!(lab.engine.snapshots().len(), 2);
    assert_eq!(lab.control("DELETE /templates/mine%3Adefault", Value::Null).await.status, 204);
    assert_eq!(lab.engine.snapshots().len(), 1, "the template");
}

#[tokio::test]
async fn who_resumes_as_before_gets_a_short_life_and_no_other_end() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"timeout": 600})).await;
    assert_eq!(lab.control(&format!("POST /sandboxes/{id}/pause"), json!({})).await.status, 204);
    let resume = format!("POST /sandboxes/{id}/resume");
    let refused = lab.control(&resume, json!({"autoPause": true})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.body.to_string().contains("autoPause"), "{}", refused.body);
    let resumed = lab.control(&resume, json!({"autoPause": false})).await;
    assert_eq!(resumed.status, 201, "{}", resumed.body);
    let end = lab.engine.sandboxes()[0].expires_at.unwrap();
    let left = end.duration_since(std::time::SystemTime::now()).unwrap().as_secs();
    assert!((5..=15).contains(&left), "{left} s");
}

#[tokio::test]
async fn what_forkd_does_not_do_is_refused_with_what_does_it_instead() {
    let lab = Lab::new().await;
    for (what, instead) in [
        ("GET /volumes", "snapshot"),
        ("GET /secrets/x", "forkd secret"),
        ("POST /v3/templates", "forkd build"),
    ] {
        let answer = lab.control(what, Value::Null).await;
        assert_eq!(answer.status, 501, "{what}: 404 reads as `there is none`");
        let message = answer.body["message"].as_str().unwrap();
        assert!(message.contains(instead), "{what}: {message}");
    }
    // Clients remove the tags of a build by this route; it names no snapshot, whatever there is.
    let (id, _) = lab.sandbox(json!({})).await;
    let keep = format!("POST /sandboxes/{id}/snapshots");
    assert_eq!(lab.control(&keep, json!({"name": "tags"})).await.status, 201);
    assert_eq!(lab.control("DELETE /templates/tags", Value::Null).await.status, 501);
    assert_eq!(lab.control("DELETE /templates/tags%3Adefault", Value::Null).await.status, 204);
}

#[tokio::test]
async fn a_template_is_found_by_its_name_and_by_what_stands_for_it() {
    let lab = Lab::new().await;
    for name in ["small", "base"] {
        let found = lab.control(&format!("GET /templates/aliases/{name}"), Value::Null).await;
        assert_eq!((found.status, &found.body["templateID"]), (200, &json!("small")), "{name}");
    }
    let none = lab.control("GET /templates/aliases/none", Value::Null).await;
    assert_eq!(none.status, 404);
}

#[tokio::test]
async fn a_name_stands_for_another_snapshot_from_the_next_request_on() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let keep = format!("POST /sandboxes/{id}/snapshots");
    assert_eq!(lab.control(&keep, json!({"name": "later"})).await.status, 201);
    let aliases = crate::Aliases::in_folder(&lab.folder(), BTreeMap::new());
    for (name, stands_for) in [("base", "later"), ("team/own", "later"), ("base", "small")] {
        aliases.set(name, &stands_for.parse().unwrap()).unwrap();
        let made = lab.control("POST /v2/sandboxes", json!({"templateID": name})).await;
        assert_eq!(made.status, 201, "{}", made.body);
        assert_eq!(
            (&made.body["templateID"], &made.body["alias"]),
            (&json!(stands_for), &json!(name))
        );
    }
    aliases.remove("team/own").unwrap();
    let gone = lab.control("POST /v2/sandboxes", json!({"templateID": "team/own"})).await;
    assert_eq!(gone.status, 404, "{}", gone.body);
}

#[tokio::test]
async fn a_file_is_written_with_a_signature_and_not_with_that_of_another_path() {
    let lab = Lab::new().await;
    let (_, token) = lab.sandbox(json!({})).await;
    let signed = crate::signature::Signed {
        path: "/a",
        user: "",
        right: crate::signature::Right::Write,
        expiration: None,
    };
    let signature = signed.signature(&token).replace('+', "%2B").replace('/', "%2F");
    let octets = [("content-type", "application/octet-stream")];
    let write = format!("POST /files?path=/a&signature={signature}");
    let written = lab.ask(&write, &octets, "content".into()).await;
    assert_eq!(written.status, 200, "{}", written.body);
    assert_eq!(written.body, json!([{"path": "/a", "name": "a", "type": "file"}]));
    let write = format!("POST /files?path=/b&signature={signature}");
    assert_eq!(lab.ask(&write, &octets, "content".into()).await.status, 401);
}

#[tokio::test]
async fn a_large_file_comes_in_and_a_broken_one_is_refused_at_once() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let mut form = b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n".to_vec();
    form.extend(vec![b'z'; 5 << 20]);
    let broken = form.clone();
    form.extend(b"\r\n--x--\r\n");
    let headers =
        [("x-access-token", &*token), ("content-type", "multipart/form-data; boundary=x")];
    let write = "POST /files?path=/a";
    let written = lab.data(write, &id, &headers, form.into()).await;
    assert_eq!(written.status, 200, "{}", written.body);
    let refused = lab.data(write, &id, &headers, broken.into()).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}
