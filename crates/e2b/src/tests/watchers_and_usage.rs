//! Watchers that the guest keeps, what programs use, and who answers for the interpreter.

use axum::body::Body;
use serde_json::{Value, json};

use super::{Answer, Lab, SOON};

const JSON: (&str, &str) = ("content-type", "application/json");

impl Lab {
    pub(super) async fn call(&self, what: &str, of: &(String, String), body: Value) -> Answer {
        let (id, token) = of;
        let more = [JSON, ("x-access-token", &**token)];
        self.data(
            &format!("POST /filesystem.Filesystem/{what}"),
            id,
            &more,
            body.to_string().into(),
        )
        .await
    }

    async fn interpreter(&self, what: &str, of: &(String, String)) -> Answer {
        let (id, token) = of;
        let headers = [
            ("e2b-sandbox-id", &**id),
            ("e2b-sandbox-port", "49999"),
            ("x-access-token", &**token),
        ];
        self.ask(what, &headers, Body::empty()).await
    }
}

#[tokio::test]
async fn a_watcher_tells_what_was_done_before_it_is_asked_and_only_once() {
    let lab = Lab::new().await;
    let sandbox = lab.sandbox(json!({})).await;
    let ask = json!({"path": "/w", "recursive": true, "includeEntry": true});
    let made = lab.call("CreateWatcher", &sandbox, ask).await;
    let watcher = json!({"watcherId": made.body["watcherId"].as_str().unwrap()});
    let (id, token) = &sandbox;
    let more = [("content-type", "application/octet-stream"), ("x-access-token", &**token)];
    let write = async || {
        let what = "POST /files?path=/w/below/new";
        let written = lab.data(what, id, &more, "text".into()).await;
        assert_eq!(written.status, 200, "{}", written.body);
    };
    let told = async || {
        let told = lab.call("GetWatcherEvents", &sandbox, watcher.clone()).await;
        told.body["events"].as_array().unwrap().clone()
    };
    let kinds = |events: &[Value]| {
        assert!(events.iter().all(|event| event["name"] == "below/new"), "{events:?}");
        let kinds = events.iter().map(|event| event["type"].as_str().unwrap().to_owned());
        kinds.collect::<Vec<_>>()
    };
    write().await;
    let events = told().await;
    let new = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"];
    assert_eq!(kinds(&events), new);
    assert_eq!(events[2]["entry"]["size"], "4");
    write().await;
    assert_eq!(kinds(&told().await), ["EVENT_TYPE_WRITE"], "it was there");
    let again = lab.call("GetWatcherEvents", &sandbox, watcher.clone()).await;
    assert_eq!(again.body, json!({"events": []}));
    let removed = lab.call("RemoveWatcher", &sandbox, watcher.clone()).await;
    assert_eq!((removed.status, removed.body), (200, json!({})));
    let gone = lab.call("GetWatcherEvents", &sandbox, watcher).await;
    assert_eq!((gone.status, &gone.body["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn what_programs_use_is_one_sample_of_now_and_none_of_other_times() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let metrics = async |query: &str| {
        lab.control(&format!("GET /sandboxes/{id}/metrics{query}"), Value::Null).await
    };
    let now = metrics("").await.body;
    let [sample] = &now.as_array().unwrap()[..] else { panic!("{now}") };
    for (field, value) in [
        ("cpuCount", json!(2)),
        ("cpuUsedPct", json!(12.5)),
        ("memTotal", json!(1_u64 << 30)),
        ("memUsed", json!(1_u64 << 28)),
        ("memCache", json!(1_u64 << 27)),
        ("diskTotal", json!(1_u64 << 33)),
        ("diskUsed", json!(1_u64 << 32)),
    ] {
        assert_eq!(sample[field], value, "{field}");
    }
    assert_eq!(metrics("?start=0&end=1").await.body, json!([]), "before its start");
    assert_eq!(metrics("?start=x").await.status, 400);
    assert_eq!(lab.control(&format!("POST /sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(metrics("").await.body, json!([]), "it is paused");
}

#[tokio::test]
async fn the_guest_is_asked_for_an_interpreter_of_its_own_only_when_there_may_be_one() {
    let lab = Lab::new().await;
    let asked = || lab.ports.tries();
    let sandbox = lab.sandbox(json!({})).await;
    for _ in 0..5 {
        assert_eq!(lab.interpreter("GET /health", &sandbox).await.status, 200);
    }
    assert_eq!(asked(), 1, "what is known is not asked again");
    let fork = format!("POST /sandboxes/{}/fork", sandbox.0);
    let forked = lab.control(&fork, json!({"timeout": 60})).await.body;
    let fork = &forked[0]["sandbox"];
    let text = |name: &str| fork[name].as_str().unwrap().to_owned();
    let fork = (text("sandboxID"), text("envdAccessToken"));
    assert_eq!(lab.interpreter("GET /health", &fork).await.status, 200);
    assert_eq!(asked(), 1, "a fork is as its source was");
    let start = json!({"process": {"cmd": "/bin/true"}}).to_string();
    let mut envelope = vec![0];
    envelope.extend(u32::try_from(start.len()).unwrap().to_be_bytes());
    envelope.extend(start.bytes());
    let more = [("content-type", "application/connect+json"), ("x-access-token", &*sandbox.1)];
    lab.data("POST /process.Process/Start", &sandbox.0, &more, envelope.into()).await;
    assert_eq!(lab.interpreter("GET /health", &sandbox).await.status, 200);
    assert_eq!(asked(), 2, "what was started may be one");
    // What nobody has told us of is found a while later, by a look that no request waits for.
    let begun = std::time::Instant::now();
    while asked() == 2 {
        assert_eq!(lab.interpreter("GET /health", &sandbox).await.status, 200);
        assert!(begun.elapsed() < SOON);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
