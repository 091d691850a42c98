//! Goal: what the engine tells of operations, events and memory reaches a client over HTTP, a
//! client that resumes misses nothing, and neither one that listens nor a template that is being
//! built keeps the daemon from ending.
//!
//! Method: the released binary and a client of its own. Breaks when a route answers anything else
//! than the engine says, when an event has no id, or when a stream outlives the engine.

use std::time::{Duration, Instant};

use forkd_client::api::{BranchRequest, CreateSandboxes, CreateSnapshot, Operation, Snapshot};
use forkd_client::{Client, ClientError, EventFilter, EventStream, ServerEvent, Target};
use forkd_types::OperationState;

use crate::forkd::Forkd;

/// Longest wait for something that must happen.
const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn events_and_operations_reach_clients() {
    let mut forkd = Forkd::held_to_contract();
    forkd.ok(&["ls"]);
    let socket = forkd.socket();
    let client = Client::new(Target::Socket(socket)).unwrap();
    let mut stream = client.events(&all(), None).await.unwrap();
    cancelled_template(&client, &mut stream).await;
    let last = resumed(&client).await;
    lists_and_metrics(&client).await;

    filtered(&client, &forkd, last).await;
    assert!(forkd.let_go_of_contract().contains_key("GET /v1/events"));
    let mut stream = client.events(&all(), Some(last)).await.unwrap();
    let endless = CreateSnapshot { warm: endless(), ..CreateSnapshot::new("endless", "tiny") };
    client.create_snapshot(&CreateSnapshot { wait: false, ..endless }).await.unwrap();
    until(&mut stream, "operation.progress", "run the warm-up").await;
    let begun = Instant::now();
    forkd.ok(&["stop", "--stop-sandboxes"]);
    assert!(begun.elapsed() < SOON / 2, "a listener has held the daemon up");
    let mut kinds = Vec::new();
    while let Some(event) = next(&mut stream).await {
        kinds.push(event.kind);
    }
    for told in ["sandbox.removed", "snapshot.removed", "operation.ended"] {
        assert!(kinds.iter().any(|kind| kind == told), "{told}: {kinds:?}");
    }
}

fn all() -> EventFilter {
    EventFilter::default()
}

/// A warm-up that takes longer than anybody waits.
fn endless() -> Vec<String> {
    vec!["/bin/sleep".to_owned(), "600".to_owned()]
}

async fn next(stream: &mut EventStream) -> Option<ServerEvent> {
    tokio::time::timeout(SOON, stream.next()).await.unwrap().unwrap()
}

/// Reads up to an event of this type that is about `name`.
async fn until(stream: &mut EventStream, kind: &str, name: &str) -> ServerEvent {
    loop {
        let event = next(stream).await.unwrap();
        if event.kind == kind && event.data.contains(name) {
            return event;
        }
    }
}

async fn cancelled_template(client: &Client, stream: &mut EventStream) {
    let warm = endless();
    let request =
        CreateSnapshot { wait: false, warm, mem_size_mib: 128, ..CreateSnapshot::new("t", "tiny") };
    let writing = client.create_snapshot(&request).await.unwrap();
    let id = writing.operation_id.unwrap();
    assert_eq!(
        (writing.status.as_str(), client.operations(None).await.unwrap().len()),
        ("writing", 1)
    );
    until(stream, "operation.progress", "run the warm-up").await;
    let waited = client.wait_operation(&id, 0).await.unwrap();
    assert_eq!(waited.state, OperationState::Running, "the time to wait is over");
    client.cancel_operation(&id).await.unwrap();
    let ended = until(stream, "operation.ended", &id).await;
    let told: Operation = serde_json::from_str(&ended.data).unwrap();
    assert_eq!(told.state, OperationState::Cancelled);
    assert_eq!(client.wait_operation(&id, 30).await.unwrap(), told);
    let refused = client.cancel_operation(&id).await.unwrap_err();
    let ClientError::Api(failure) = refused else { panic!("{refused}") };
    assert_eq!((failure.status, failure.code.as_str()), (409, "operation_not_cancellable"));
}

/// Gives the id of the last event that was read.
async fn resumed(client: &Client) -> u64 {
    let mut stream = client.events(&all(), None).await.unwrap();
    let request = CreateSnapshot { mem_size_mib: 128, ..CreateSnapshot::new("t", "tiny") };
    client.create_snapshot(&request).await.unwrap();
    let first = next(&mut stream).await.unwrap();
    assert_eq!(first.kind, "snapshot.writing");
    drop(stream);
    let options = CreateSandboxes {
        metadata: [("user".to_owned(), "ann b&c".to_owned())].into(),
        ..CreateSandboxes::new("t", 1)
    };
    let source = client.create_sandboxes(&options).await.unwrap().remove(0);
    let branch = BranchRequest { wait: false, ..BranchRequest::default() };
    let branched = client.branch(&source.id, &branch).await.unwrap().snapshot;
    let mut stream = client.events(&all(), Some(first.id.unwrap().parse().unwrap())).await.unwrap();
    let second = next(&mut stream).await.unwrap();
    assert_eq!(second.kind, "operation.started", "right after the one that was read");
    until(&mut stream, "snapshot.ready", "\"t\"").await;
    let durable = until(&mut stream, "snapshot.durable", &branched.tag).await;
    let told: Snapshot = serde_json::from_str(&durable.data).unwrap();
    assert!(told.durable && told.phases_ms.contains_key("publish"), "{told:?}");
    // The operation ends after that.
    let last = until(&mut stream, "operation.ended", &branched.tag).await;
    last.id.unwrap().parse().unwrap()
}

/// Only what a client asks for comes, from the client library and on the command line.
async fn filtered(client: &Client, forkd: &Forkd, last: u64) {
    let kind = Some("snapshot.re".to_owned());
    let filter = EventFilter { kind, snapshot: Some("x".to_owned()), ..EventFilter::default() };
    let mut stream = client.events(&filter, Some(last)).await.unwrap();
    forkd.ok(&["snapshot", "compact", "t", "--to", "other"]);
    forkd.ok(&["snapshot", "compact", "t", "--to", "x"]);
    let ready = next(&mut stream).await.unwrap();
    assert_eq!((ready.kind.as_str(), ready.data.contains("\"x\"")), ("snapshot.ready", true));
    let operations = forkd.json(&["operations", "--state", "cancelled"]);
    assert_eq!(operations.as_array().unwrap().len(), 1, "{operations}");
    let id = operations[0]["id"].as_str().unwrap();
    let (told, code) = forkd.refused(&["operation", "wait", id]);
    assert!(told.contains("cancelled") && code == 1, "{told}");
    let (told, _) = forkd.refused(&["operation", "cancel", id]);
    assert!(told.contains("hint:"), "{told}");
}

async fn lists_and_metrics(client: &Client) {
    let of = |user: &str| [("user".to_owned(), user.to_owned())];
    assert_eq!(client.sandboxes_with(&of("ann b&c")).await.unwrap().len(), 1);
    assert_eq!(client.sandboxes_with(&of("ann")).await.unwrap().len(), 0);
    let both = [of("ann b&c"), [("job".to_owned(), "7".to_owned())]].concat();
    assert_eq!(client.sandboxes_with(&both).await.unwrap().len(), 0, "all words must be there");
    let text = client.metrics().await.unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).parse().unwrap()
    };
    for once in [
        "forkd_branch_pause_seconds_count{mode=\"live\"}",
        "forkd_branch_phase_seconds_count{phase=\"publish\"}",
        "forkd_branches_total{mode=\"live\",result=\"ready\"}",
        "forkd_fork_seconds_count",
        "forkd_operations_total{kind=\"template\",result=\"cancelled\"}",
        "forkd_errors_total{code=\"operation_not_cancellable\"}",
        "forkd_sandboxes{state=\"running\"}",
    ] {
        assert_eq!(value(once), 1.0, "{once}");
    }
    let mebibyte = f64::from(1 << 20);
    for least in [
        "forkd_vmm_memory_bytes{kind=\"private\"}",
        "forkd_vmm_memory_bytes{kind=\"shared\"}",
        "forkd_hot_bytes",
        "forkd_durable_bytes",
    ] {
        assert!(value(least) > mebibyte, "{least} {}", value(least));
    }
    assert_eq!(value("forkd_vmm_memory_unread"), 0.0);
}
