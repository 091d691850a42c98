//! A model's program starts `forkd mcp` and works in a real sandbox and in two children of it.
//!
//! Method: the protocol's own client library, over the command's standard input and output. What
//! would break it: words of the daemon's start on standard output, a tool that reaches the wrong
//! sandbox, children that share what they write.

use std::process::Stdio;

use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{RoleClient, RunningService};
use serde_json::{Value, json};

use crate::forkd::Forkd;

/// What a tool gives, and whether it is an error.
async fn call(
    model: &RunningService<RoleClient, ()>,
    tool: &'static str,
    given: Value,
) -> (Value, bool) {
    let given = given.as_object().unwrap().clone();
    let request = CallToolRequestParams::new(tool).with_arguments(given);
    let result = model.call_tool(request).await.unwrap();
    (result.structured_content.unwrap(), result.is_error == Some(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn models_use_sandboxes_over_mcp() {
    let forkd = Forkd::held_to_contract();
    let mut command = tokio::process::Command::from(forkd.command(&["mcp"]));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let pipes = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let model = ().serve(pipes).await.unwrap();
    let (created, _) = call(&model, "create", json!({})).await;
    let source = created["id"].as_str().unwrap();
    let code = |sandbox: &str, code: &str| json!({ "sandbox": sandbox, "code": code });
    call(&model, "run_code", code(source, "x = [1]")).await;
    let branch = json!({ "sandbox": source, "children": 2, "tag": "thought" });
    let (branch, _) = call(&model, "branch", branch).await;
    for (number, child) in (2..).zip(branch["children"].as_array().unwrap()) {
        let child = child["id"].as_str().unwrap();
        let (answer, _) =
            call(&model, "run_code", code(child, &format!("x.append({number}); x"))).await;
        assert_eq!(answer["result"], format!("[1, {number}]"));
        let file = json!({ "sandbox": child, "path": "/srv/f", "text": number.to_string() });
        call(&model, "write_file", file).await;
        let command = json!({ "sandbox": child, "command": "cat /srv/f; exit 3" });
        let (ended, _) = call(&model, "run_command", command).await;
        assert_eq!(
            (&ended["stdout"], &ended["exit_code"]),
            (&json!(number.to_string()), &json!(3))
        );
    }
    let (answer, _) = call(&model, "run_code", code(source, "x")).await;
    assert_eq!(answer["result"], "[1]", "the source has nothing of its children");
    let (told, refused) = call(&model, "delete", json!({ "name": "thought" })).await;
    assert!(refused && told["code"] == "snapshot_in_use", "{told}");
    call(&model, "delete", json!({ "name": "thought", "cascade": true })).await;
    let (left, _) = call(&model, "list", json!({})).await;
    assert_eq!(left["sandboxes"].as_array().unwrap().len(), 1, "{left}");
    model.cancel().await.unwrap();
    assert!(child.wait().await.unwrap().success(), "it ends with its input");
}
