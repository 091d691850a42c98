//! Goal: every answer of the control interface has the fields that clients of E2B cannot do
//! without, with values that they can read: Python's raise an error where one is missing.
//!
//! Method: every route of the router's source is asked. Its answer, and that of a request that it
//! refuses, are compared with a list of fields and kinds. A route that has no list here fails.

use serde_json::{Value, json};

use super::Lab;
use super::others_own::routes;

/// What the value of a field must be.
#[derive(Debug, Clone, Copy)]
enum Is {
    Text,
    Count,
    Number,
    Flag,
    Time,
    Map,
    Texts,
    OneOf(&'static [&'static str]),
}

type Fields = &'static [(&'static str, Is)];

const HANDED_OUT: Fields = &[
    ("templateID", Is::Text),
    ("sandboxID", Is::Text),
    ("clientID", Is::Text),
    ("envdVersion", Is::Text),
    ("envdAccessToken", Is::Text),
];
const LISTED: Fields = &[
    ("templateID", Is::Text),
    ("sandboxID", Is::Text),
    ("clientID", Is::Text),
    ("startedAt", Is::Time),
    ("endAt", Is::Time),
    ("cpuCount", Is::Count),
    ("memoryMB", Is::Count),
    ("diskSizeMB", Is::Count),
    ("state", Is::OneOf(&["running", "paused"])),
    ("envdVersion", Is::Text),
    ("metadata", Is::Map),
];
const DETAIL: Fields = &[("envdAccessToken", Is::Text), ("lifecycle", Is::Map)];
const LIFECYCLE: Fields = &[("autoResume", Is::Flag), ("onTimeout", Is::OneOf(&["kill", "pause"]))];
const SNAPSHOT: Fields = &[("snapshotID", Is::Text), ("names", Is::Texts)];
const TEMPLATE: Fields = &[("templateID", Is::Text), ("public", Is::Flag)];
const METRIC: Fields = &[
    ("timestamp", Is::Time),
    ("timestampUnix", Is::Count),
    ("cpuCount", Is::Count),
    ("cpuUsedPct", Is::Number),
    ("memUsed", Is::Count),
    ("memTotal", Is::Count),
    ("memCache", Is::Count),
    ("diskUsed", Is::Count),
    ("diskTotal", Is::Count),
];
const ERROR: Fields = &[("code", Is::Count), ("message", Is::Text)];

impl Is {
    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Count => value.is_u64(),
            Self::Number => value.is_number(),
            Self::Flag => value.is_boolean(),
            Self::Time => value.as_str().is_some_and(|text| {
                humantime::parse_rfc3339(text).is_ok() && text.ends_with('Z') && text.contains('.')
            }),
            Self::Map => value.is_object(),
            Self::Texts => value.as_array().is_some_and(|all| all.iter().all(Value::is_string)),
            Self::OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }
}

/// What is missing or of another kind.
fn wrong(value: &Value, fields: Fields) -> Vec<String> {
    let wrong = fields.iter().filter(|(name, is)| !is.fits(&value[*name]));
    wrong.map(|(name, is)| format!("{name} must be {is:?}, not {}", value[*name])).collect()
}

/// What is wrong with the answer to a route that has done it.
fn wrong_answer(what: &str, answer: &Value) -> Vec<String> {
    let each = |fields: Fields| {
        let all = answer.as_array().unwrap_or_else(|| panic!("{what}: no list: {answer}"));
        all.iter().flat_map(|one| wrong(one, fields)).collect()
    };
    match what {
        "POST /sandboxes" | "POST /v2/sandboxes" => wrong(answer, HANDED_OUT),
        "POST /sandboxes/{id}/connect"
        | "POST /v2/sandboxes/{id}/connect"
        | "POST /sandboxes/{id}/resume" => wrong(answer, HANDED_OUT),
        "GET /sandboxes" | "GET /v2/sandboxes" => each(LISTED),
        "GET /sandboxes/{id}" => {
            let lifecycle = wrong(&answer["lifecycle"], LIFECYCLE);
            [wrong(answer, LISTED), wrong(answer, DETAIL), lifecycle].concat()
        }
        "POST /sandboxes/{id}/fork" => {
            let forks = answer.as_array().unwrap_or_else(|| panic!("{what}: {answer}"));
            forks.iter().flat_map(|fork| wrong(&fork["sandbox"], HANDED_OUT)).collect()
        }
        "POST /sandboxes/{id}/snapshots" => wrong(answer, SNAPSHOT),
        "GET /snapshots" => each(SNAPSHOT),
        "GET /templates/aliases/{id}" => wrong(answer, TEMPLATE),
        "GET /sandboxes/{id}/metrics" => each(METRIC),
        "GET /health"
        | "DELETE /sandboxes/{id}"
        | "DELETE /templates/{id}"
        | "POST /sandboxes/{id}/timeout"
        | "POST /sandboxes/{id}/refreshes"
        | "POST /sandboxes/{id}/pause"
        | "PUT /sandboxes/{id}/network" => {
            if answer.is_null() {
                Vec::new()
            } else {
                vec![format!("says {answer}")]
            }
        }
        _ => panic!("{what}: which fields must its answer have?"),
    }
}

#[tokio::test]
async fn every_answer_has_what_clients_cannot_do_without() {
    let lab = Lab::new().await;
    for (number, (method, path)) in routes().into_iter().enumerate() {
        let what = format!("{method} {path}");
        let (id, _) = lab.sandbox(json!({"metadata": {"a": "b"}})).await;
        let name = format!("mine-{number:02}");
        let keep = format!("POST /sandboxes/{id}/snapshots");
        assert_eq!(lab.control(&keep, json!({"name": name})).await.status, 201);
        let body = match path.rsplit('/').next().unwrap() {
            _ if method == "GET" || method == "DELETE" => Value::Null,
            "sandboxes" => json!({"templateID": "base"}),
            "timeout" => json!({"timeout": 30}),
            _ => json!({}),
        };
        let of = if path.starts_with("/templates/") { &name } else { &id };
        let done = lab.control(&what.replace("{id}", of), body.clone()).await;
        assert!((200..300).contains(&done.status), "{what}: {} {}", done.status, done.body);
        assert_eq!(wrong_answer(&what, &done.body), [""; 0], "{what}: {}", done.body);
        if path.contains("{id}") {
            let refused = lab.control(&what.replace("{id}", "nobody"), body).await;
            assert_eq!(wrong(&refused.body, ERROR), [""; 0], "{what}: {}", refused.body);
            assert_eq!(refused.body["code"], refused.status, "{what}");
        }
    }
}

#[test]
fn what_is_missing_or_cannot_be_read_is_found() {
    const TIME: &str = "2026-01-02T03:04:05.000006Z";
    let sandbox = json!({
        "templateID": "t", "sandboxID": "s", "clientID": "c", "endAt": TIME, "startedAt": TIME,
        "cpuCount": 1, "memoryMB": 64, "diskSizeMB": 0,
        "state": "running", "envdVersion": "0.6.13", "metadata": {},
    });
    assert_eq!(wrong(&sandbox, LISTED), [""; 0]);
    for (name, bad) in [
        ("templateID", json!("")),
        ("endAt", json!("2026-01-02T03:04:05+00:00")),
        ("endAt", json!(5)),
        ("cpuCount", json!("1")),
        ("state", json!("starting")),
        ("metadata", Value::Null),
    ] {
        let mut changed = sandbox.clone();
        changed[name] = bad;
        let found = wrong(&changed, LISTED);
        assert!(found.len() == 1 && found[0].starts_with(name), "{found:?}");
    }
}
