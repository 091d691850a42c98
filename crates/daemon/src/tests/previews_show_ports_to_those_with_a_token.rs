//! Goal: whoever has a token for a port reaches the server behind it with any client of HTTP, and
//! nobody else learns that there is one; the server sees the request as it was sent, without the
//! token; what streams is streamed.
//!
//! Method: the previews' routes over scripted VMs, and a server of HTTP behind their ports that
//! says what it got. Breaks when a token opens another port, when an answer tells a guesser that a
//! sandbox exists, when a token is passed on, or when a body is collected before it is passed on.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::routing::{any, get};
use axum::{Router, http};
use forkd_engine::Limits;
use futures_util::stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::lab::{Answer, Lab, PREVIEW_PORT, read};
use crate::connection::{Listener, serve};

const PORT: u16 = 8080;
const HEADER: &str = "x-forkd-traffic-token";

/// Says what it got.
async fn echo(
    method: http::Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> impl axum::response::IntoResponse {
    let headers: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let text = String::from_utf8_lossy(&body).into_owned();
    let got = json!({ "method": method.as_str(), "uri": uri.to_string(), "headers": headers,
        "body": text });
    let cookies = [("set-cookie", "own=1; Domain=localhost; Path=/")];
    let mut answer = (StatusCode::IM_A_TEAPOT, cookies, Json(got)).into_response();
    answer.headers_mut().append("set-cookie", "forkd_traffic_token=tossed".parse().unwrap());
    answer.headers_mut().insert("connection", "x-hop, close".parse().unwrap());
    answer.headers_mut().insert("x-hop", "1".parse().unwrap());
    answer
}

/// Becomes a stream of bytes that says what it hears.
async fn upgrade(mut request: Request) -> impl axum::response::IntoResponse {
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrading.await.unwrap());
        let mut word = [0; 5];
        stream.read_exact(&mut word).await.unwrap();
        stream.write_all(&word).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "Upgrade"), ("upgrade", "websocket")])
}

/// A server behind a port. Its path `/stream` gives the pieces that a test sends.
fn server(mut connections: UnboundedReceiver<UnixStream>) -> mpsc::UnboundedSender<&'static str> {
    let (pieces, receiver) = mpsc::unbounded_channel::<&'static str>();
    let receiver = std::sync::Arc::new(tokio::sync::Mutex::new(receiver));
    let streamed = move || {
        let receiver = receiver.clone();
        let pieces = stream::unfold(receiver, |receiver| async move {
            let piece = receiver.lock().await.recv().await?;
            Some((Ok::<_, Infallible>(piece), receiver))
        });
        async move { Body::from_stream(pieces) }
    };
    let routes = Router::new()
        .route("/stream", get(streamed))
        .route("/upgrade", any(upgrade))
        .fallback(echo);
    tokio::spawn(async move {
        while let Some(stream) = connections.recv().await {
            let service = TowerToHyperService::new(routes.clone());
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await.ok();
            });
        }
    });
    pieces
}

struct Scene {
    lab: Lab,
    sandbox: String,
    pieces: mpsc::UnboundedSender<&'static str>,
}

impl Scene {
    async fn new() -> Self {
        let lab = Lab::new(Limits::default()).await;
        let sandbox = lab.make("ann", "t").await.sandbox;
        let pieces = server(lab.ports.listen(PORT));
        Self { lab, sandbox, pieces }
    }

    async fn issue(&self, port: u16) -> Value {
        let path = format!("/v1/sandboxes/{}/ports/{port}/token", self.sandbox);
        let issued = self.lab.ask("ann", "POST", &path, Some(json!({}))).await;
        assert_eq!(issued.status, 201, "{issued:?}");
        issued.body
    }

    async fn token(&self, port: u16) -> String {
        self.issue(port).await["token"].as_str().unwrap().to_owned()
    }

    fn host(&self, port: u16) -> String {
        format!("{port}-{}.localhost:{PREVIEW_PORT}", self.sandbox)
    }

    async fn begin(
        &self,
        request: http::request::Builder,
        body: &'static str,
    ) -> http::Response<Body> {
        self.lab.previews.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }

    async fn get(&self, host: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = http::Request::get(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(self.begin(request, "").await).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_opens_its_port_and_without_one_nothing_tells_what_is_there() {
    let scene = Scene::new().await;
    let (token, other) = (scene.token(PORT).await, scene.token(PORT + 1).await);
    let there = scene.get(&scene.host(PORT), "/", &[]).await;
    assert_eq!(there.status, 404);
    let (elsewhere, none) = (scene.host(9), "8080-sb-000000000000.localhost");
    for (host, headers) in [
        (scene.host(PORT).as_str(), &[(HEADER, "guessed")][..]),
        (&scene.host(PORT), &[(HEADER, &other)]),
        (&scene.host(PORT), &[("authorization", &format!("Bearer {token}"))]),
        (&elsewhere, &[(HEADER, &token)]),
        (none, &[(HEADER, &token)]),
        (none, &[]),
    ] {
        assert_eq!(scene.get(host, "/", headers).await, there, "{host} {headers:?}");
    }
    let shown = scene.get(&scene.host(PORT), "/", &[(HEADER, &token)]).await;
    assert_eq!(shown.status, 418, "{shown:?}");
    // Of a port that nobody listens on, whoever may see it learns that.
    let closed = scene.get(&scene.host(PORT + 1), "/", &[(HEADER, &other)]).await;
    assert_eq!(closed.status, 502);
    assert!(closed.body.as_str().unwrap().contains("port 8081"), "{closed:?}");
    assert_eq!(scene.get("evil.example", "/", &[(HEADER, &token)]).await.status, 421);
    let named = [("x-forkd-sandbox", scene.sandbox.as_str()), ("x-forkd-port", "8080")];
    assert_eq!(scene.get("127.0.0.1", "/", &named).await, there);
    let named = [named[0], named[1], (HEADER, &token)];
    assert_eq!(scene.get("127.0.0.1", "/", &named).await.status, 418);

    let path = format!("/v1/sandboxes/{}/ports/{PORT}/token", scene.sandbox);
    assert_eq!(scene.lab.ask("bob", "DELETE", &path, None).await.status, 404);
    assert_eq!(scene.lab.ask("bob", "POST", &path, Some(json!({}))).await.status, 404);
    assert_eq!(scene.lab.ask("ann", "DELETE", &path, None).await.status, 204);
    assert_eq!(scene.get(&scene.host(PORT), "/", &[(HEADER, &token)]).await, there);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_opens_the_address_once_and_goes_on_with_a_cookie() {
    let scene = Scene::new().await;
    let issued = scene.issue(PORT).await;
    let url: Uri = issued["url"].as_str().unwrap().parse().unwrap();
    assert_eq!(url.authority().unwrap().as_str(), scene.host(PORT));
    assert_eq!(issued["host"], scene.host(PORT));
    let path = format!("/a/b?x=1&{}", url.query().unwrap());
    let opened = http::Request::get(&path).header("host", scene.host(PORT));
    let opened = scene.begin(opened, "").await;
    assert_eq!(opened.status(), 303);
    assert_eq!(opened.headers()["location"], "/a/b?x=1");
    let cookie = opened.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("HttpOnly") && !cookie.contains("Domain"), "{cookie}");
    let cookie = format!("{}; theirs=2", cookie.split(';').next().unwrap());
    let shown = scene.get(&scene.host(PORT), "/a/b?x=1", &[("cookie", &cookie)]).await;
    assert_eq!(shown.status, 418);
    let text = shown.body.to_string();
    assert!(!text.contains(issued["token"].as_str().unwrap()), "{text}");
    assert!(text.contains("theirs=2"), "{text}");
    for elsewhere in ["//evil.example/x", "/\\evil.example/x", "//\\/evil.example/x"] {
        let path = format!("{elsewhere}?{}", url.query().unwrap());
        let opened = http::Request::get(path).header("host", scene.host(PORT));
        let opened = scene.begin(opened, "").await;
        assert_eq!(opened.headers()["location"], "/evil.example/x", "it stays on its host");
    }
    // What is no page is not sent elsewhere.
    let form = http::Request::post(&path).header("host", scene.host(PORT));
    assert_eq!(scene.begin(form, "x").await.status(), 418);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_sees_the_request_as_it_was_sent_and_its_answer_comes_back() {
    let scene = Scene::new().await;
    let token = scene.token(PORT).await;
    let request = http::Request::put("/p%20q?a=b")
        .header("host", scene.host(PORT))
        .header(HEADER, &token)
        .header("authorization", "Basic its-own")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("x-own", "kept");
    let answer = scene.begin(request, "the body").await;
    let cookies: Vec<_> = answer.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["own=1; Path=/"], "for its own host, and not ours");
    assert!(!answer.headers().contains_key("x-hop"));
    let got = read(answer).await.body;
    assert_eq!((&got["method"], &got["uri"]), (&json!("PUT"), &json!("/p%20q?a=b")));
    assert_eq!(got["body"], "the body");
    let header = |name: &str| {
        let all = got["headers"].as_array().unwrap();
        all.iter().find(|header| header[0] == name).map(|header| header[1].as_str().unwrap())
    };
    assert_eq!(header("host"), Some(scene.host(PORT).as_str()));
    assert_eq!(header("x-forwarded-host"), Some(scene.host(PORT).as_str()));
    assert_eq!(header("x-forwarded-proto"), Some("http"));
    assert_eq!((header("authorization"), header("x-own")), (Some("Basic its-own"), Some("kept")));
    assert_eq!((header("x-hop"), header(HEADER)), (None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_public_port_needs_no_token_and_a_server_is_told_the_host_of_the_policy() {
    let scene = Scene::new().await;
    let hidden = scene.get(&scene.host(PORT), "/", &[]).await;
    let path = format!("/v1/sandboxes/{}/network", scene.sandbox);
    let policy = json!({ "public_ports": [PORT], "mask_request_host": "localhost:${PORT}" });
    let set = scene.lab.ask("ann", "PUT", &path, Some(policy)).await;
    assert_eq!(set.status, 200, "{set:?}");
    let template = set.body["preview_url"].as_str().unwrap().replace("{port}", "8080");
    assert_eq!(template, format!("http://{}", scene.host(PORT)));

    let shown = scene.get(&scene.host(PORT), "/?forkd_token=x&a=b", &[(HEADER, "stale")]).await;
    assert_eq!((shown.status, &shown.body["uri"]), (418, &json!("/?a=b")));
    let headers = shown.body["headers"].as_array().unwrap();
    assert!(headers.contains(&json!(["host", "localhost:8080"])), "{headers:?}");
    assert!(headers.contains(&json!(["x-forwarded-host", scene.host(PORT)])), "{headers:?}");
    assert_eq!(scene.get(&scene.host(PORT + 1), "/", &[]).await, hidden, "another port");

    let all = json!({ "allow_public_traffic": true });
    assert_eq!(scene.lab.ask("ann", "PUT", &path, Some(all)).await.status, 200);
    assert_eq!(scene.get(&scene.host(PORT), "/", &[]).await.status, 418);
    assert_eq!(scene.get(&scene.host(PORT + 1), "/", &[]).await.status, 502);
    assert_eq!(scene.lab.ask("ann", "PUT", &path, Some(json!({}))).await.status, 200);
    assert_eq!(scene.get(&scene.host(PORT), "/", &[]).await, hidden, "public no longer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_passed_on_as_it_comes_and_an_upgrade_is_one() {
    let scene = Scene::new().await;
    let token = scene.token(PORT).await;
    let request = http::Request::get("/stream").header("host", scene.host(PORT));
    let answer = scene.begin(request.header(HEADER, &token), "").await;
    let mut body = answer.into_body().into_data_stream();
    for piece in ["one", "two"] {
        scene.pieces.send(piece).unwrap();
        let came = futures_util::StreamExt::next(&mut body).await.unwrap().unwrap();
        assert_eq!(came, piece, "before the next one is sent");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serve(Listener::Tcp(listener, None), scene.lab.previews.clone(), stop));
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /upgrade HTTP/1.1\r\nhost: {}\r\n{HEADER}: {token}\r\nconnection: keep-alive, Upgrade\
         \r\nupgrade: websocket\r\n\r\n",
        scene.host(PORT)
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    client.write_all(b"hello").await.unwrap();
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"hello");
}
