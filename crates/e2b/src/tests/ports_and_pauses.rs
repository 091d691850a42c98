//! Servers in sandboxes under E2B's addresses, and sandboxes that pause and wake by themselves.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ANN, Answer, Lab, SERVED_PORT, SOON};
use crate::{Part, Subject};

impl Lab {
    /// Asks a server in a sandbox by its name below the domain.
    async fn server(&self, port: u16, id: &str, headers: &[(&str, &str)]) -> Answer {
        let host = format!("{port}-{id}.e2b.test:443");
        let headers: Vec<_> = headers.iter().copied().chain([("host", &*host)]).collect();
        self.ask("GET /page?a=b", &headers, Body::empty()).await
    }

    async fn state(&self, id: &str) -> Value {
        self.control(&format!("GET /sandboxes/{id}"), Value::Null).await.body
    }

    /// Waits until clients are told that a sandbox is paused.
    async fn wait_paused(&self, id: &str) {
        let paused = async {
            while self.state(id).await["state"] != "paused" {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, paused).await.unwrap();
    }
}

#[tokio::test]
async fn whoever_knows_the_address_of_a_server_reaches_it_and_it_sees_no_token() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({"network": {"maskRequestHost": "here:${PORT}"}})).await;
    let sent = [
        ("x-access-token", &*token),
        ("x-api-key", &*lab.key),
        ("e2b-traffic-access-token", "any"),
        ("x-mine", "1"),
    ];
    let answer = lab.server(SERVED_PORT, &id, &sent).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["sandbox"], id.replace("sb", "sb-"));
    assert_eq!(answer.body["host"], format!("here:{SERVED_PORT}"));
    assert_eq!(answer.body["uri"], "/page?a=b");
    assert_eq!(answer.body["headers"], json!(["x-mine", "host"]));
    let own = [("x-access-token", "of the server's own")];
    let answer = lab.server(SERVED_PORT, &id, &own).await;
    assert_eq!(answer.body["headers"], json!(["x-access-token", "host"]));
    let nobody = lab.server(SERVED_PORT, "sbffffffffffff", &[]).await;
    assert_eq!(
        (nobody.status, &nobody.body["message"]),
        (502, &json!("The sandbox was not found"))
    );
}

#[tokio::test]
async fn an_answer_says_what_its_request_was_about_and_who_has_its_key() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let sandbox = Some(format!("sb-{}", &id[2..]).parse().unwrap());
    let about = async |what: &str, headers: &[(&str, &str)]| {
        let (method, uri) = what.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer =
            lab.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let subject = answer.extensions().get::<Subject>().unwrap();
        let owner = subject.owner.as_ref().map(|owner| owner.as_str().to_owned());
        (subject.part, owner, subject.sandbox.clone())
    };
    let control = format!("GET /sandboxes/{id}");
    let ann = Some("ann".to_owned());
    assert_eq!(about(&control, &[("x-api-key", ANN)]).await, (Part::Control, ann, sandbox.clone()));
    assert_eq!(about(&control, &[]).await, (Part::Control, None, sandbox.clone()));
    let at =
        |port| [("e2b-sandbox-id", &*id), ("e2b-sandbox-port", port), ("x-access-token", &*token)];
    for (port, part) in [("49983", Part::Agent), ("49999", Part::Interpreter), ("3000", Part::Port)]
    {
        assert_eq!(about("GET /health", &at(port)).await, (part, None, sandbox.clone()));
    }
    let half = [("e2b-sandbox-id", &*id)];
    assert_eq!(about("GET /health", &half).await, (Part::Unclear, None, None));
}

#[tokio::test]
async fn without_public_traffic_a_server_is_reached_with_the_token_of_its_sandbox_alone() {
    let lab = Lab::new().await;
    let network = json!({"network": {"allowPublicTraffic": false}});
    let mut body = json!({"templateID": "base"});
    body.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
    let made = lab.control("POST /v2/sandboxes", body).await.body;
    let id = made["sandboxID"].as_str().unwrap();
    let token = made["trafficAccessToken"].as_str().unwrap();
    let (open, _) = lab.sandbox(json!({})).await;
    assert!(lab.state(&open).await["trafficAccessToken"].is_null());
    for wrong in [None, Some(""), Some(&lab.key), made["envdAccessToken"].as_str()] {
        let headers: Vec<_> =
            wrong.iter().map(|token| ("e2b-traffic-access-token", *token)).collect();
        let answer = lab.server(SERVED_PORT, id, &headers).await;
        assert_eq!((answer.status, &answer.body["code"]), (403, &json!(403)), "{wrong:?}");
    }
    let headers = [("e2b-traffic-access-token", token)];
    assert_eq!(lab.server(SERVED_PORT, id, &headers).await.status, 200);
    let fork = lab.control(&format!("POST /sandboxes/{id}/fork"), json!({"timeout": 60})).await;
    let fork = &fork.body[0]["sandbox"];
    assert_ne!(fork["trafficAccessToken"], token, "a fork has its own");
    let fork = fork["sandboxID"].as_str().unwrap();
    assert_eq!(lab.server(SERVED_PORT, fork, &headers).await.status, 403);
}

#[tokio::test]
async fn a_sandbox_that_forkd_made_asks_for_the_token_that_connecting_gives() {
    let lab = Lab::new().await;
    let made = lab.engine.fork(&"small".parse().unwrap(), 1).await.unwrap();
    let id = made[0].id.as_str().replace('-', "");
    assert_eq!(lab.server(SERVED_PORT, &id, &[]).await.status, 403);
    let connected = lab.control(&format!("POST /v2/sandboxes/{id}/connect"), json!({})).await;
    let token = connected.body["trafficAccessToken"].as_str().unwrap();
    let headers = [("e2b-traffic-access-token", token)];
    assert_eq!(lab.server(SERVED_PORT, &id, &headers).await.status, 200);
}

#[tokio::test]
async fn a_sandbox_pauses_at_its_end_if_that_was_wished_and_then_has_none() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"autoPause": true, "timeout": 1})).await;
    let lifecycle = json!({"autoResume": false, "onTimeout": "pause"});
    assert_eq!(lab.state(&id).await["lifecycle"], lifecycle);
    lab.wait_paused(&id).await;
    assert_eq!(lab.server(SERVED_PORT, &id, &[]).await.status, 502);
    let connect = format!("POST /v2/sandboxes/{id}/connect");
    assert_eq!(lab.control(&connect, json!({"timeout": 600})).await.status, 201);
    assert_eq!(lab.server(SERVED_PORT, &id, &[]).await.status, 200);
    let set = format!("POST /sandboxes/{id}/timeout");
    lab.control(&set, json!({"timeout": 1})).await;
    lab.wait_paused(&id).await;
}

#[tokio::test]
async fn requests_that_may_wake_a_sandbox_that_was_made_so_and_others_do_not() {
    let lab = Lab::new().await;
    let body = json!({
        "autoResume": {"enabled": true}, "timeout": 600, "network": {"allowPublicTraffic": false},
    });
    let (id, token) = lab.sandbox(body).await;
    let pause = async || {
        assert_eq!(
            lab.control(&format!("POST /sandboxes/{id}/pause"), json!({})).await.status,
            204
        );
    };
    pause().await;
    assert_eq!(lab.server(SERVED_PORT, &id, &[]).await.status, 502);
    assert_eq!(lab.data("GET /health", &id, &[], Body::empty()).await.status, 502);
    assert_eq!(lab.state(&id).await["state"], "paused");
    let connect = format!("POST /v2/sandboxes/{id}/connect");
    let traffic = lab.control(&connect, json!({"timeout": 9})).await.body["trafficAccessToken"]
        .as_str()
        .unwrap()
        .to_owned();
    pause().await;
    let headers = [("e2b-traffic-access-token", &*traffic)];
    let both = tokio::join!(
        lab.server(SERVED_PORT, &id, &headers),
        lab.server(SERVED_PORT, &id, &headers)
    );
    assert_eq!((both.0.status, both.1.status), (200, 200));
    assert_eq!(lab.state(&id).await["state"], "running");
    let left = lab.engine.sandboxes()[0].expires_at.unwrap().elapsed().unwrap_err().duration();
    assert!((500..=600).contains(&left.as_secs()), "as at its creation: {left:?}");
    pause().await;
    let with = [("content-type", "application/json"), ("x-access-token", &*token)];
    let list = lab.data("POST /process.Process/List", &id, &with, "{}".into()).await;
    assert_eq!(list.status, 200);
}
