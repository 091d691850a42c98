//! A client of the protocol finds the tools, calls them, and understands what comes of it.
//!
//! Method: the official client library over pipes in memory; the daemon is a listener with answers
//! that are written down. What would break it: a tool without description or schema, a request
//! that differs from what the tool was given, a refusal that looks like a success.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use forkd_client::{Client, Target};
use forkd_mcp::{Server, TEXT_BYTES_MAX};
use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TOOLS: [&str; 12] = [
    "branch",
    "create",
    "delete",
    "expose_port",
    "fork",
    "list",
    "network",
    "read_file",
    "rollback",
    "run_code",
    "run_command",
    "write_file",
];

type Model = RunningService<RoleClient, ()>;

/// A model whose daemon gives these answers, one for each request; and what it was asked.
async fn model(answers: Vec<(u16, Value)>) -> (Model, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::Url(format!("http://{}", listener.local_addr().unwrap()));
    let asked = tokio::spawn(daemon(listener, answers));
    let server = Server::new(Client::new(target).unwrap());
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move { server.serve(theirs).await.unwrap().waiting().await });
    (().serve(ours).await.unwrap(), asked)
}

async fn daemon(listener: TcpListener, answers: Vec<(u16, Value)>) -> Vec<String> {
    let mut asked = Vec::new();
    for (status, body) in answers {
        let (mut stream, _) = listener.accept().await.unwrap();
        asked.push(request(&mut stream).await);
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
        let answer = format!("{head}connection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    asked
}

/// The request line and the body.
async fn request(stream: &mut tokio::net::TcpStream) -> String {
    let mut text = String::new();
    loop {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).await.unwrap();
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        if body.len() >= length {
            let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
            return format!("{line} {body}").trim_end().to_owned();
        }
    }
}

async fn call(model: &Model, tool: &'static str, arguments: Value) -> CallToolResult {
    let arguments = arguments.as_object().unwrap().clone();
    let request = CallToolRequestParams::new(tool).with_arguments(arguments);
    model.call_tool(request).await.unwrap()
}

fn data(result: &CallToolResult) -> &Value {
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.structured_content.as_ref().unwrap()
}

fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "snapshot_tag": "python", "created_at_unix": 1, "state": "running",
        "branch_count": 0, "hostname": id,
    })
}

fn snapshot(tag: &str) -> Value {
    json!({
        "tag": tag, "dir": "/d", "created_at_unix": 1, "status": "ready", "durable": true,
        "bootable": true,
    })
}

fn refusal(code: &str) -> Value {
    json!({ "error": "no", "code": code, "hint": "do something" })
}

#[tokio::test]
async fn every_tool_says_what_it_does_and_what_it_takes() {
    let (model, _) = model(Vec::new()).await;
    let info = model.peer_info().unwrap();
    assert!(info.instructions.as_ref().unwrap().contains("branch"));
    let mut tools = model.list_all_tools().await.unwrap();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), TOOLS);
    for tool in &tools {
        assert!(tool.description.as_ref().is_some_and(|text| text.ends_with('.')), "{}", tool.name);
        let schema = Value::Object((*tool.input_schema).clone());
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            assert!(field["description"].is_string(), "{}.{name}", tool.name);
        }
    }
}

#[tokio::test]
async fn a_sandbox_is_created_from_the_image_when_there_is_no_template_yet() {
    let images = json!([{ "name": "python", "description": "d" }]);
    let (model, asked) = model(vec![
        (404, refusal("snapshot_not_found")),
        (200, images),
        (201, snapshot("python")),
        (201, json!([sandbox("sb-1")])),
    ])
    .await;
    assert_eq!(data(&call(&model, "create", json!({})).await)["id"], "sb-1");
    let asked = asked.await.unwrap();
    let routes: Vec<_> = asked.iter().map(|line| line.split(" {").next().unwrap()).collect();
    let fork = "POST /v1/sandboxes";
    assert_eq!(routes, [fork, "GET /v1/images", "POST /v1/snapshots", fork]);
}

#[tokio::test]
async fn what_the_model_gives_reaches_the_daemon() {
    let code = json!({
        "stdout": "hi\n", "stderr": "", "exit_code": 0, "timed_out": false, "state_lost": false,
        "result": "3",
        "parts": [
            { "mime": "text/plain", "data": "3" },
            { "mime": "image/png", "data": "iVBORw==" },
        ],
    });
    let command = json!({ "stdout": "", "stderr": "", "exit_code": 3, "timed_out": false });
    let mut branch = snapshot("t");
    branch["children"] = json!([{ "sandbox": sandbox("sb-2") }, { "error": refusal("no_space") }]);
    let (model, asked) = model(vec![
        (200, code),
        (200, command),
        (201, branch),
        (200, sandbox("sb-1")),
        (204, json!(null)),
        (204, json!(null)),
    ])
    .await;
    let given = json!({ "sandbox": "sb-1", "code": "1 + 2", "timeout_secs": 5 });
    let answer = call(&model, "run_code", given).await;
    assert_eq!((&data(&answer)["result"], &data(&answer)["stdout"]), (&json!("3"), &json!("hi\n")));
    let images = answer.content.iter().filter_map(|block| block.as_image());
    assert_eq!(images.map(|image| image.data.as_str()).collect::<Vec<_>>(), ["iVBORw=="]);
    let given = json!({ "sandbox": "sb-1", "command": "exit 3" });
    assert_eq!(data(&call(&model, "run_command", given).await)["exit_code"], 3);
    let answer = call(&model, "branch", json!({ "sandbox": "sb-1", "children": 2 })).await;
    let children = &data(&answer)["children"];
    assert_eq!((&children[0]["id"], &children[1]["error"]), (&json!("sb-2"), &json!("no")));
    call(&model, "rollback", json!({ "sandbox": "sb-1", "snapshot": "t" })).await;
    call(&model, "delete", json!({ "name": "sb-1" })).await;
    call(&model, "delete", json!({ "name": "t", "cascade": true })).await;
    let asked = asked.await.unwrap();
    for (line, parts) in asked.iter().zip([
        &["POST /v1/sandboxes/sb-1/eval", "1 + 2", "\"timeout_secs\":5"][..],
        &["POST /v1/sandboxes/sb-1/exec", "[\"/bin/sh\",\"-c\",\"exit 3\"]"],
        &["POST /v1/sandboxes/sb-1/branch", "\"n\":2"],
        &["POST /v1/sandboxes/sb-1/rollback", "\"snapshot_tag\":\"t\""],
        &["DELETE /v1/sandboxes/sb-1"],
        &["DELETE /v1/snapshots/t?cascade=true"],
    ]) {
        assert!(parts.iter().all(|part| line.contains(part)), "{line}: {parts:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_remedy_and_the_server_goes_on() {
    let (model, _) = model(vec![(404, refusal("sandbox_not_found")), (204, json!(null))]).await;
    let refused = call(&model, "delete", json!({ "name": "sb-1" })).await;
    assert_eq!(refused.is_error, Some(true));
    let told = refused.structured_content.unwrap();
    assert_eq!(
        (&told["code"], &told["hint"]),
        (&json!("sandbox_not_found"), &json!("do something"))
    );
    assert_eq!(data(&call(&model, "delete", json!({ "name": "sb-1" })).await)["deleted"], "sb-1");
    let gone = call(&model, "list", json!({})).await;
    assert_eq!(gone.is_error, Some(true), "the daemon is away");
}

#[tokio::test]
async fn what_a_guest_prints_does_not_flood_the_model() {
    let flood = json!({
        "stdout": "x".repeat(1 << 20), "stderr": "", "exit_code": 0, "timed_out": false,
    });
    let (model, _) = model(vec![(200, flood)]).await;
    let answer = call(&model, "run_command", json!({ "sandbox": "sb-1", "command": "yes" })).await;
    assert!(data(&answer)["stdout"].as_str().unwrap().len() <= TEXT_BYTES_MAX);
}

#[tokio::test]
async fn a_model_sees_what_a_sandbox_may_reach_and_what_it_was_refused() {
    let entry = |number: u64, outcome: &str, name: &str| {
        json!({ "number": number, "unix_ms": 0, "outcome": outcome, "protocol": "udp",
            "name": name, "reason": "no rule allows the name" })
    };
    let log = json!({ "missing": 0, "entries": [
        entry(1, "ended", "good.example"), entry(2, "refused", "bad.example"),
    ] });
    let policy = json!({ "allow_out": ["good.example"] });
    let (model, asked) = model(vec![(200, policy.clone()), (200, log)]).await;
    let answer = call(&model, "network", json!({ "sandbox": "sb-1" })).await;
    assert_eq!(data(&answer)["policy"], policy);
    let refused = data(&answer)["refused"].as_array().unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0]["name"], "bad.example");
    let asked = asked.await.unwrap();
    assert!(asked[1].contains("GET /v1/sandboxes/sb-1/network/log"), "{asked:?}");
}

#[tokio::test]
async fn a_model_gets_an_address_for_a_port_or_learns_what_is_missing() {
    let token = json!({ "url": "http://8080-sb-1.localhost/?forkd_token=t", "host": "h",
        "token": "t", "expires_at_unix": 7 });
    let refused = json!({ "error": "no", "code": "no_previews", "hint": "--preview-listen" });
    let (model, asked) = model(vec![(201, token), (409, refused)]).await;
    let given = json!({ "sandbox": "sb-1", "port": 8080, "ttl_secs": 60 });
    let answer = call(&model, "expose_port", given.clone()).await;
    assert_eq!(data(&answer)["url"], "http://8080-sb-1.localhost/?forkd_token=t");
    let answer = call(&model, "expose_port", given).await;
    assert_eq!(answer.structured_content.unwrap()["hint"], "--preview-listen");
    let asked = asked.await.unwrap();
    let parts = ["POST /v1/sandboxes/sb-1/ports/8080/token", "\"ttl_secs\":60"];
    assert!(parts.iter().all(|part| asked[0].contains(part)), "{asked:?}");
}
