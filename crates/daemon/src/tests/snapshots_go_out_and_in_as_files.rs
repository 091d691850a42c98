//! Goal: a snapshot goes out over one route and in over another, to whoever asks; what is broken or
//! not permitted is refused with its code and leaves nothing.
//!
//! Method: the routes over an engine on scripted VMs, asked by two users and an admin.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request};
use forkd_engine::Limits;
use futures_util::stream;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::lab::{Answer, Lab, read, token};
use crate::access::Peer;

async fn export(lab: &Lab, owner: &str, tag: &str) -> Vec<u8> {
    let path = format!("/v1/snapshots/{tag}/artifact");
    let answer = lab.begin(owner, "GET", &path, None).await;
    assert_eq!(answer.status(), 200);
    let length = answer.headers()["content-length"].to_str().unwrap().to_owned();
    let file = to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec();
    assert_eq!(file.len().to_string(), length);
    file
}

async fn import(lab: &Lab, owner: &str, query: &str, file: &[u8]) -> Answer {
    let body = Some(("application/octet-stream", file.to_vec()));
    read(lab.begin(owner, "POST", &format!("/v1/artifacts{query}"), body).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_goes_out_and_in_and_belongs_to_whoever_took_it_in() {
    let lab = Lab::new(Limits::default()).await;
    lab.make("ann", "t").await;
    let file = export(&lab, "ann", "t").await;
    let bobs = import(&lab, "bob", "?tag=mine", &file).await;
    assert_eq!((bobs.status, &bobs.body["tag"]), (201, &json!("mine")), "{bobs:?}");
    let fork = json!({"snapshot_tag": "mine"});
    assert_eq!(lab.ask("bob", "POST", "/v1/sandboxes", Some(fork)).await.status, 201);
    let seen = lab.ask("ann", "GET", "/v1/snapshots/bob%2Fmine/info", None).await;
    assert_eq!((seen.status, seen.code()), (404, "snapshot_not_found"));
    let operations = lab.ask("bob", "GET", "/v1/operations", None).await.body;
    let kinds: Vec<&Value> = operations.as_array().unwrap().iter().map(|o| &o["kind"]).collect();
    assert!(kinds.contains(&&json!("import")) && !kinds.contains(&&json!("export")), "{kinds:?}");
    let taken = import(&lab, "bob", "?tag=mine", &file).await;
    assert_eq!((taken.status, taken.code()), (409, "tag_taken"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_or_not_permitted_is_refused_with_its_code_and_leaves_nothing() {
    let lab = Lab::new(Limits::default()).await;
    lab.make("ann", "t").await;
    let file = export(&lab, "ann", "t").await;
    for (owner, query, file, refusal) in [
        ("bob", "", &file[..file.len() - 1], (422, "artifact_refused")),
        ("bob", "", &b"no artifact"[..], (422, "artifact_refused")),
        ("bob", "?tag=a.b", &file[..], (400, "bad_request")),
        ("bob", "?tag=ann/t2", &file[..], (400, "bad_request")),
        ("bob", "?trust_once=true", &file[..], (403, "admin_only")),
    ] {
        let answer = import(&lab, owner, query, file).await;
        assert_eq!((answer.status, answer.code()), refusal, "{query}: {answer:?}");
    }
    let pieces = vec![Ok(Bytes::from(file[..2000].to_vec())), Err(std::io::Error::other("gone"))];
    let request = Request::builder()
        .method(Method::POST)
        .uri("/v1/artifacts")
        .header("authorization", format!("Bearer {}", token("bob")))
        .extension(Peer::Tcp("10.1.2.3:4".parse().unwrap()))
        .body(Body::from_stream(stream::iter(pieces)));
    let broken = read(lab.router.clone().oneshot(request.unwrap()).await.unwrap()).await;
    assert_eq!((broken.status, broken.code()), (400, "bad_request"), "{broken:?}");
    let left = lab.ask("bob", "GET", "/v1/snapshots", None).await.body;
    assert_eq!(left, json!([]), "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_sees_the_keys_and_admins_change_them() {
    let lab = Lab::new(Limits::default()).await;
    let keys = lab.ask("bob", "GET", "/v1/keys", None).await.body;
    assert_eq!(keys["trusted"], json!([]));
    let key = json!({"key": keys["key"]});
    let refused = lab.ask("bob", "PUT", "/v1/keys/me", Some(key.clone())).await;
    assert_eq!((refused.status, refused.code()), (403, "admin_only"));
    assert_eq!(lab.ask("ops", "PUT", "/v1/keys/me", Some(key)).await.status, 204);
    let trusted = lab.ask("bob", "GET", "/v1/keys", None).await.body["trusted"].clone();
    assert_eq!((&trusted[0]["name"], &trusted[0]["key"]), (&json!("me"), &keys["key"]));
    let wrong = lab.ask("ops", "PUT", "/v1/keys/me", Some(json!({"key": "ed25519:AB"}))).await;
    assert_eq!((wrong.status, wrong.code()), (400, "bad_request"));
    let refused = lab.ask("bob", "DELETE", "/v1/keys/me", None).await;
    assert_eq!((refused.status, refused.code()), (403, "admin_only"));
    assert_eq!(lab.ask("ops", "DELETE", "/v1/keys/me", None).await.status, 204);
    let gone = lab.ask("ops", "DELETE", "/v1/keys/me", None).await;
    assert_eq!((gone.status, gone.code()), (404, "key_not_found"));
}
