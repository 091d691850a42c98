//! Goal: every kind of answer has the fields that clients of E2B cannot do without, with values
//! that they can read: Python's raise an error where one is missing.
//!
//! Method: what clients need is listed here, by the names of the document's schemas; a schema that
//! does not demand it fails. Every answer of every test is held to the document on its way (see
//! `checked`). One test asks for every operation, and names those that it cannot be answered.

use std::collections::BTreeSet;

use axum::body::Body;
use serde_json::{Value, json};

use super::others_own::routes;
use super::{Lab, SERVED_PORT};
use crate::connect::message;
use crate::document::Document;

/// What clients cannot do without of a value of this schema.
pub(super) fn needed(schema: &str) -> &'static [&'static str] {
    NEEDED.iter().find(|(name, _)| *name == schema).map_or(&[], |(_, fields)| fields)
}

/// What clients cannot do without, by schema.
const NEEDED: [(&str, &[&str]); 25] = [
    ("Sandbox", &["templateID", "sandboxID", "clientID", "envdVersion", "envdAccessToken"]),
    (
        "ListedSandbox",
        &[
            "templateID",
            "sandboxID",
            "clientID",
            "startedAt",
            "endAt",
            "cpuCount",
            "memoryMB",
            "diskSizeMB",
            "state",
            "envdVersion",
        ],
    ),
    ("SandboxDetail", &["envdAccessToken", "lifecycle"]),
    ("Lifecycle", &["autoResume", "onTimeout"]),
    ("Snapshot", &["snapshotID", "names"]),
    ("TemplateName", &["templateID", "public"]),
    (
        "Metric",
        &[
            "timestamp",
            "timestampUnix",
            "cpuCount",
            "cpuUsedPct",
            "memUsed",
            "memTotal",
            "memCache",
            "diskUsed",
            "diskTotal",
        ],
    ),
    ("Error", &["code", "message"]),
    ("CallError", &["code", "message"]),
    ("NoServer", &["sandboxId", "message", "code"]),
    ("ProcessMessage", &["event"]),
    ("ProcessStart", &["pid"]),
    ("ProcessEnd", &["exitCode", "exited", "status"]),
    ("ProcessList", &["processes"]),
    ("ProcessInfo", &["config", "pid"]),
    ("OneEntry", &["entry"]),
    ("Entries", &["entries"]),
    ("EntryInfo", &["name", "type", "path"]),
    ("Watcher", &["watcherId"]),
    ("WatcherEvents", &["events"]),
    ("FilesystemEvent", &["name", "type"]),
    ("WrittenFile", &["path", "name", "type"]),
    ("Context", &["id", "language", "cwd"]),
    ("InterpreterOutput", &["text", "timestamp"]),
    ("InterpreterResult", &["is_main_result"]),
];

/// One of several forms, and the field, or the value of `type`, by which clients tell them apart.
const FORMS: [(&str, &[&str]); 5] = [
    ("ProcessEvent", &["start", "data", "end", "keepalive"]),
    ("ProcessOutput", &["stdout", "stderr", "pty"]),
    ("WatchMessage", &["start", "filesystem", "keepalive"]),
    ("ForkResult", &["sandbox", "error"]),
    (
        "InterpreterEvent",
        &[
            "number_of_executions",
            "stdout",
            "stderr",
            "result",
            "error",
            "keepalive",
            "end_of_execution",
        ],
    ),
];

/// All that a schema demands, also in the parts that it is made of.
fn demanded(schema: &Value) -> BTreeSet<&str> {
    let own = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let parts = schema["allOf"].as_array().into_iter().flatten().flat_map(demanded);
    own.chain(parts).collect()
}

#[test]
fn the_document_demands_what_clients_cannot_do_without() {
    let schemas = &Document::of_crate().root()["components"]["schemas"];
    for (name, fields) in NEEDED {
        let demanded = demanded(&schemas[name]);
        let missing = fields.iter().copied().filter(|field| !demanded.contains(field));
        let missing: Vec<&str> = missing.collect();
        assert_eq!(missing, [""; 0], "{name}");
    }
    for (name, words) in FORMS {
        let forms = schemas[name]["oneOf"].to_string();
        for word in words {
            assert!(forms.contains(&format!("\"{word}\"")), "{name}: {word}");
        }
    }
    let events = schemas["InterpreterEvent"]["oneOf"].as_array().unwrap();
    let error = events.iter().find(|event| event.to_string().contains("[\"error\"]")).unwrap();
    assert!(demanded(error).is_superset(&["name", "value", "traceback"].into()), "{error}");
}

/// Operations whose answer is a stream that begins with `start`.
const STREAMS: [&str; 3] = [
    "POST /filesystem.Filesystem/WatchDir",
    "POST /process.Process/Connect",
    "POST /process.Process/Start",
];

/// Operations whose success only a guest with programs, an interpreter and files can bring about.
/// The sessions of `tests/cli/e2b` have one. Here they are refused, and the refusal is checked;
/// what they say when they succeed is checked where it is made.
const NOT_DONE_HERE: [&str; 17] = [
    "GET /contexts",
    "POST /contexts",
    "DELETE /contexts/{id}",
    "POST /contexts/{id}/restart",
    "POST /execute",
    "GET /files",
    "POST /filesystem.Filesystem/ListDir",
    "POST /filesystem.Filesystem/MakeDir",
    "POST /filesystem.Filesystem/Move",
    "POST /filesystem.Filesystem/Remove",
    "POST /filesystem.Filesystem/WatchDir",
    "POST /process.Process/CloseStdin",
    "POST /process.Process/Connect",
    "POST /process.Process/SendInput",
    "POST /process.Process/SendSignal",
    "POST /process.Process/Start",
    "POST /process.Process/Update",
];

impl Lab {
    /// Asks everything of the control interface, and for what is not there.
    async fn ask_all_of_control(&self) {
        for (number, (method, path)) in routes().into_iter().enumerate() {
            let what = format!("{method} {path}");
            let (id, _) = self.sandbox(json!({"metadata": {"a": "b"}})).await;
            let name = format!("mine-{number:02}");
            let keep = format!("POST /sandboxes/{id}/snapshots");
            assert_eq!(self.control(&keep, json!({"name": name})).await.status, 201);
            let body = match path.rsplit('/').next().unwrap() {
                _ if method == "GET" || method == "DELETE" => Value::Null,
                "sandboxes" => json!({"templateID": "base"}),
                "timeout" => json!({"timeout": 30}),
                _ => json!({}),
            };
            let of = if path.starts_with("/templates/") { &name } else { &id };
            let done = self.control(&what.replace("{id}", of), body.clone()).await;
            assert!((200..300).contains(&done.status), "{what}: {} {}", done.status, done.body);
            if path.contains("{id}") {
                let refused = self.control(&what.replace("{id}", "nobody"), body).await;
                assert_eq!(refused.status, 404, "{what}: {}", refused.body);
            }
        }
    }

    /// Asks everything of a sandbox, with its token and without.
    async fn ask_all_of_sandbox(&self, id: &str, token: &str) {
        let watcher = json!({"path": "/w"});
        for operation in Document::of_crate().operations() {
            let path = operation.split(' ').nth(1).unwrap();
            let schemas = &Document::of_crate().root()["paths"][path];
            let is_control = schemas.to_string().contains("\"control\"");
            if is_control && path != "/health" {
                continue;
            }
            let is_stream = ["Start", "Connect", "WatchDir", "StreamInput"]
                .iter()
                .any(|word| path.ends_with(&format!("/{word}")));
            let (kind, body) = match path {
                "/files" => ("application/octet-stream", b"text".to_vec()),
                _ if is_stream => {
                    let ask = json!({"process": {"pid": 1, "cmd": "/bin/true"}, "path": "/w"});
                    ("application/connect+json", message(&ask).to_vec())
                }
                _ => ("application/json", watcher.to_string().into_bytes()),
            };
            let what = operation.replace("{id}", "any");
            let what = if path == "/files" { format!("{what}?path=/w/a") } else { what };
            for port in ["49983", "49999"] {
                for token in [token, "none"] {
                    let headers = [
                        ("e2b-sandbox-id", id),
                        ("e2b-sandbox-port", port),
                        ("content-type", kind),
                        ("x-access-token", token),
                    ];
                    self.ask(&what, &headers, body.clone().into()).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn every_operation_is_answered_as_the_document_says() {
    let lab = Lab::new().await;
    lab.ask_all_of_control().await;
    let (id, token) = lab.sandbox(json!({})).await;
    lab.ask_all_of_sandbox(&id, &token).await;
    // Those that need something which is there.
    let more = [("content-type", "application/json"), ("x-access-token", &*token)];
    let ask = async |what: &str, body: Value| {
        let what = format!("POST /filesystem.Filesystem/{what}");
        lab.data(&what, &id, &more, body.to_string().into()).await.body
    };
    let watcher = ask("CreateWatcher", json!({"path": "/w"})).await;
    ask("GetWatcherEvents", watcher.clone()).await;
    ask("RemoveWatcher", watcher).await;
    let seen = lab.seen.all();
    let mut not_done = Vec::new();
    for operation in Document::of_crate().operations() {
        let begins = |with: String| seen.iter().any(|seen| seen.starts_with(&with));
        assert!(begins(format!("{operation} ")), "{operation} was not asked for: {seen:#?}");
        // A stream is a success of HTTP, whatever is in it.
        let is_done = if STREAMS.contains(&&*operation) {
            begins(format!("{operation}: start"))
        } else {
            begins(format!("{operation} 2"))
        };
        if !is_done {
            not_done.push(operation);
        }
    }
    assert_eq!(not_done, NOT_DONE_HERE, "{seen:#?}");
}

#[tokio::test]
async fn what_the_router_answers_by_itself_is_as_the_document_says() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"network": {"allowPublicTraffic": false}})).await;
    let served = SERVED_PORT.to_string();
    for (headers, status) in [
        (vec![("e2b-sandbox-id", &*id)], 400),
        (vec![("e2b-sandbox-id", &*id), ("e2b-sandbox-port", "0")], 400),
        (vec![("e2b-sandbox-id", &*id), ("e2b-sandbox-port", &*served)], 403),
        (vec![("e2b-sandbox-id", &*id), ("e2b-sandbox-port", "49999")], 403),
        (vec![("e2b-sandbox-id", "nobody"), ("e2b-sandbox-port", "49999")], 502),
        (vec![("e2b-sandbox-id", "nobody"), ("e2b-sandbox-port", "49983")], 502),
        (vec![("e2b-sandbox-id", "nobody"), ("e2b-sandbox-port", "1")], 502),
    ] {
        // It is held to the document on its way.
        let answer = lab.ask("GET /health", &headers, Body::empty()).await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
    }
}

/// All pages of a list, one by one.
async fn pages(lab: &Lab, list: &str) -> Vec<Value> {
    let (mut pages, mut next) = (Vec::new(), String::new());
    loop {
        let page = lab.control(&format!("GET {list}?limit=1&nextToken={next}"), Value::Null).await;
        assert_eq!(page.status, 200, "{}", page.body);
        pages.push(page.body);
        assert!(pages.len() < 10, "there is no end of {list}");
        match page.headers.get("x-next-token") {
            Some(token) => next = token.to_str().unwrap().to_owned(),
            None => return pages,
        }
    }
}

#[tokio::test]
async fn pages_of_one_give_each_sandbox_and_each_snapshot_once_newest_first() {
    let lab = Lab::new().await;
    let (mut sandboxes, mut snapshots) = (Vec::new(), Vec::new());
    for name in ["one", "two", "three"] {
        let (id, _) = lab.sandbox(json!({})).await;
        let keep = format!("POST /sandboxes/{id}/snapshots");
        assert_eq!(lab.control(&keep, json!({"name": name})).await.status, 201);
        sandboxes.insert(0, json!([id]));
        snapshots.insert(0, json!([format!("{name}:default")]));
    }
    for (list, field, expected) in [
        ("/sandboxes", "sandboxID", &sandboxes),
        ("/v2/sandboxes", "sandboxID", &sandboxes),
        ("/snapshots", "snapshotID", &snapshots),
    ] {
        let found = pages(&lab, list).await;
        let names = found.iter().map(|page| {
            let page = page.as_array().unwrap().iter();
            page.map(|one| one[field].clone()).collect::<Value>()
        });
        assert_eq!(&names.collect::<Vec<_>>(), expected, "{list}");
    }
}
