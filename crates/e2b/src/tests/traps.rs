//! Goal: what clients of E2B trip over is tested, each of it.
//!
//! Method: [`TRAPS`] names the tests; one test looks whether they are there. Those that belong to
//! no other file are below. What needs a guest that writes, watches and runs is in the sessions of
//! `tests/cli/`, which are programs for E2B.

use std::fs;
use std::path::Path;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::Lab;
use crate::connect::{Broken, message, streamed};

/// What a client trips over, and the functions that test it: here, or in a session.
const TRAPS: [(&str, &[&str]); 16] = [
    (
        "a stream that fails says so in its last envelope; a sandbox that dies breaks it off",
        &[
            "an_error_of_a_stream_is_in_its_last_envelope_and_not_in_the_status",
            "a_dead_sandbox_breaks_the_answer_and_does_not_end_it",
        ],
    ),
    (
        "streams have their type and no other word, are not compressed and do not wait for more",
        &[
            "a_stream_has_the_bare_type_and_is_not_compressed",
            "each_message_of_a_stream_comes_when_it_is_said",
        ],
    ),
    (
        "a sandbox that does not run and a port that nobody serves have words of their own",
        &[
            "a_paused_sandbox_is_paused_on_one_side_and_not_found_on_the_other",
            "a_port_that_is_not_served_says_so_and_not_that_the_sandbox_is_gone",
        ],
    ),
    (
        "the address of a file does not name its sandbox",
        &[
            "only_files_with_a_signature_are_looked_up_by_it",
            "a_file_is_written_with_a_signature_and_not_with_that_of_another_path",
        ],
    ),
    (
        "Python asks again by itself, also what is no question",
        &[
            "a_client_asks_again_only_when_nothing_was_done_and_waiting_helps",
            "what_is_refused_starts_nothing_and_is_not_asked_again",
        ],
    ),
    (
        "metadata in the query of a list is escaped twice",
        &["metadata_is_unescaped_as_often_as_clients_escape_it"],
    ),
    (
        "one field of the control interface has underscores, and some have capitals",
        &["fields_are_spelled_as_clients_spell_them"],
    ),
    (
        "ids have no dash, and names in a path may be escaped",
        &["an_id_comes_back_and_has_no_dash", "a_snapshot_is_removed_by_a_name_that_is_escaped"],
    ),
    (
        "what says nothing has no body, and what makes something is 201",
        &["an_answer_without_a_word_has_no_body", "what_is_made_is_answered_as_made"],
    ),
    (
        "lines of the interpreter are ASCII, never empty, and those of streams have a time",
        &["a_line_is_ascii_without_a_break_and_says_the_same"],
    ),
    (
        "what a client has done is among the changes that it asks for next",
        &[
            "watching_below",
            "a_watcher_tells_what_was_done_before_it_is_asked_and_only_once",
            "something_new_is_told_in_the_steps_that_e2b_would_take",
        ],
    ),
    (
        "connecting never shortens a life, and a timeout may",
        &["connecting_never_shortens_a_life_and_a_timeout_may"],
    ),
    ("a command outlives its stream, unless its time is over", &["what_outlives_its_stream"]),
    (
        "the name of a part is a path; files come without their length, and may be large",
        &[
            "files_of_a_form_go_where_their_names_say",
            "a_name_in_a_form_is_what_the_client_means_whatever_its_letters",
            "a_large_file_comes_in_and_a_broken_one_is_refused_at_once",
            "a_file_comes_in_without_its_length",
        ],
    ),
    (
        "a life that nobody named is short on the old route and for a fork",
        &["a_life_that_nobody_named_is_as_long_as_that_of_e2b"],
    ),
    (
        "one listener has both sides, with the same paths",
        &["headers_decide_before_the_path_and_the_host"],
    ),
];

/// The text of all files below a folder.
fn texts(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => all += &texts(&path),
            Some("rs" | "py" | "mjs") => all += &fs::read_to_string(&path).unwrap(),
            _ => {}
        }
    }
    all
}

#[test]
fn each_trap_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (own, sessions) = (texts(&root.join("src")), texts(&root.join("../../tests/cli/e2b")));
    for (trap, tests) in TRAPS {
        assert!(!tests.is_empty(), "{trap}");
        for test in tests {
            let is_own =
                ["#[test]\n    fn", "#[tokio::test]\n    async fn", "#[tokio::test]\nasync fn"]
                    .iter()
                    .any(|before| own.contains(&format!("{before} {test}(")));
            let is_of_session = sessions.contains(&format!("def {test}("));
            assert!(is_own || is_of_session, "{trap}: nothing is called {test}");
        }
    }
}

#[tokio::test]
async fn a_stream_has_the_bare_type_and_is_not_compressed() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let headers = [
        ("x-access-token", &*token),
        ("content-type", "application/connect+json"),
        ("accept-encoding", "zstd,gzip,br"),
        ("content-encoding", "identity"),
        ("connect-content-encoding", "identity"),
    ];
    let asked = json!({"process": {"pid": 1}}).to_string();
    for call in ["process.Process/Connect", "filesystem.Filesystem/WatchDir"] {
        let body = message(&serde_json::from_str::<Value>(&asked).unwrap());
        let answer = lab.data(&format!("POST /{call}"), &id, &headers, body.into()).await;
        assert_eq!(answer.status, 200, "{call}");
        assert_eq!(answer.headers[CONTENT_TYPE], "application/connect+json", "{call}");
        assert!(!answer.headers.contains_key(CONTENT_ENCODING), "{call}");
    }
}

#[tokio::test]
async fn each_message_of_a_stream_comes_when_it_is_said() {
    let first = message(&json!({"event": {"start": {"pid": 1}}}));
    let never = stream::pending::<Result<Bytes, Broken>>();
    let said = stream::iter([Ok(first.clone())]).chain(never);
    let mut body = streamed(Ok(said)).into_body().into_data_stream();
    let come = tokio::time::timeout(super::SOON, body.next()).await.unwrap();
    assert_eq!(come.unwrap().unwrap(), first);
}

#[tokio::test]
async fn fields_are_spelled_as_clients_spell_them() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({"allow_internet_access": false})).await;
    let detail = lab.control(&format!("GET /sandboxes/{id}"), Value::Null).await.body;
    assert_eq!(detail["allowInternetAccess"], false);
    for field in ["sandboxID", "templateID", "memoryMB", "diskSizeMB", "cpuCount", "envdVersion"] {
        assert!(!detail[field].is_null(), "{field}: {detail}");
    }
    let (other, _) = lab.sandbox(json!({"allowInternetAccess": false})).await;
    let detail = lab.control(&format!("GET /sandboxes/{other}"), Value::Null).await.body;
    assert!(detail["allowInternetAccess"].is_null(), "a field that no client sends");
}

#[tokio::test]
async fn a_snapshot_is_removed_by_a_name_that_is_escaped() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let owner = lab.engine.caller().owner().clone();
    for name in ["mine%3Adefault".to_owned(), format!("{owner}%2Fmine%3Adefault")] {
        let keep = format!("POST /sandboxes/{id}/snapshots");
        assert_eq!(lab.control(&keep, json!({"name": "mine"})).await.status, 201);
        let removed = lab.control(&format!("DELETE /templates/{name}"), Value::Null).await;
        assert_eq!(removed.status, 204, "{name}: {}", removed.body);
    }
}

#[tokio::test]
async fn an_answer_without_a_word_has_no_body() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    let keep = format!("POST /sandboxes/{id}/snapshots");
    lab.control(&keep, json!({"name": "mine"})).await;
    for (what, body) in [
        (format!("POST /sandboxes/{id}/timeout"), json!({"timeout": 60})),
        (format!("POST /sandboxes/{id}/refreshes"), json!({})),
        (format!("PUT /sandboxes/{id}/network"), json!({})),
        (format!("POST /sandboxes/{id}/pause"), json!({})),
        ("DELETE /templates/mine".to_owned(), Value::Null),
        (format!("DELETE /sandboxes/{id}"), Value::Null),
    ] {
        let (method, uri) = what.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(uri).header("x-api-key", &lab.key);
        let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
        let answer = lab.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 204, "{what}");
        assert!(!answer.headers().contains_key(CONTENT_TYPE), "{what}");
        let bytes = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert!(bytes.is_empty(), "{what}: {bytes:?}");
    }
}

#[tokio::test]
async fn what_is_made_is_answered_as_made() {
    let lab = Lab::new().await;
    let (id, _) = lab.sandbox(json!({})).await;
    for (what, body, status) in [
        ("POST /sandboxes".to_owned(), json!({"templateID": "base"}), 201),
        ("POST /v2/sandboxes".to_owned(), json!({"templateID": "base"}), 201),
        (format!("POST /sandboxes/{id}/fork"), json!({}), 201),
        (format!("POST /sandboxes/{id}/snapshots"), json!({}), 201),
        (format!("POST /v2/sandboxes/{id}/connect"), json!({}), 200),
        (format!("POST /sandboxes/{id}/pause"), json!({}), 204),
        (format!("POST /v2/sandboxes/{id}/connect"), json!({}), 201),
    ] {
        let answer = lab.control(&what, body).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
    }
}

#[tokio::test]
async fn files_of_a_form_go_where_their_names_say() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let mut form = String::new();
    for path in ["/tmp/m/1", "/tmp/m/a b"] {
        form += "--x\r\nContent-Disposition: form-data; name=\"file\"; ";
        form += &format!("filename=\"{path}\"\r\n\r\ncontent\r\n");
    }
    form += "--x--\r\n";
    let headers =
        [("x-access-token", &*token), ("content-type", "multipart/form-data; boundary=x")];
    let written = lab.data("POST /files", &id, &headers, form.into()).await;
    assert_eq!(written.status, 200, "{}", written.body);
    let expected = json!([
        {"path": "/tmp/m/1", "name": "1", "type": "file"},
        {"path": "/tmp/m/a b", "name": "a b", "type": "file"},
    ]);
    assert_eq!(written.body, expected);
}

#[tokio::test]
async fn a_file_comes_in_without_its_length() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let pieces = vec![Ok::<_, std::io::Error>("some "), Ok("pieces")];
    let body = Body::from_stream(stream::iter(pieces));
    let headers = [("x-access-token", &*token), ("content-type", "application/octet-stream")];
    let written = lab.data("POST /files?path=/a", &id, &headers, body).await;
    assert_eq!(written.status, 200, "{}", written.body);
}

#[tokio::test]
async fn a_life_that_nobody_named_is_as_long_as_that_of_e2b() {
    let lab = Lab::new().await;
    let life = async |id: &Value| {
        let id = id.as_str().unwrap().replace("sb", "sb-").parse().unwrap();
        let end = lab.engine.sandbox(&id).unwrap().expires_at.unwrap();
        end.duration_since(std::time::SystemTime::now()).unwrap().as_secs()
    };
    for (what, secs) in [("POST /sandboxes", 15), ("POST /v2/sandboxes", 300)] {
        let made = lab.control(what, json!({"templateID": "base"})).await.body;
        let left = life(&made["sandboxID"]).await;
        assert!((secs - 10..=secs).contains(&left), "{what}: {left} s");
    }
    let (id, _) = lab.sandbox(json!({})).await;
    let forked = lab.control(&format!("POST /sandboxes/{id}/fork"), json!({})).await.body;
    let left = life(&forked[0]["sandbox"]["sandboxID"]).await;
    assert!((5..=15).contains(&left), "a fork: {left} s");
}
