//! The tools.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_api::{
    BranchRequest, Child, CreatePortToken, CreateSandboxes, CreateSnapshot, ErrorCode, EvalAnswer,
    EvalRequest, ExecRequest, Sandbox,
};
use forkd_client::{Client, ClientError, Dependents};
use forkd_types::FlowOutcome;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock, Implementation, ServerCapabilities, ServerConfig};
use rmcp::{ServerHandler, tool, tool_handler, tool_router};
use serde_json::{Value, json};

use crate::arguments::{
    Branch, Create, Delete, ExposePort, Fork, Network, ReadFile, Rollback, RunCode, RunCommand,
    WriteFile,
};
use crate::text::shortened;

const INSTRUCTIONS: &str = "Sandboxes are isolated Linux machines with Python that can be branched \
    while they run. Work in one with run_code, which keeps variables, and run_command. Before \
    something that may go wrong, or to try several ways at once, use branch: each child goes on \
    from that very instant, with memory, processes and files of its own. Keep the child that \
    worked and delete the others. What a sandbox may reach on the network is up to \
    a policy: see it, and what was refused, with network. Delete what you no longer need.";

/// Images that models take.
const IMAGE_TYPES: [&str; 2] = ["image/jpeg", "image/png"];

/// Refusals of the network that a model gets to see.
const REFUSALS_SHOWN: usize = 50;

/// How a sandbox's id begins.
const SANDBOX_PREFIX: &str = "sb-";

/// Serves the tools; one for each connection.
#[derive(Debug, Clone)]
pub struct Server {
    client: Client,
    tool_router: ToolRouter<Self>,
}

/// What a tool gives: data, or what the daemon refused with.
fn answer(outcome: Result<Value, ClientError>) -> CallToolResult {
    match outcome {
        Ok(data) => CallToolResult::structured(data),
        Err(ClientError::Api(failure)) => CallToolResult::structured_error(json!({
            "error": shortened(&failure.message),
            "code": failure.code,
            "hint": failure.hint,
        })),
        Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
    }
}

fn shown(sandbox: &Sandbox) -> Value {
    json!({
        "id": sandbox.id,
        "state": sandbox.state,
        "snapshot": sandbox.snapshot_tag,
        "created_at_unix": sandbox.created_at_unix,
    })
}

/// The forms of values that a model can look at: of what was shown, then of the last value.
fn images(answer: &EvalAnswer) -> Vec<ContentBlock> {
    let shown = answer.displays.iter().flat_map(|display| &display.parts);
    let forms = shown.chain(&answer.parts);
    let forms = forms.filter(|part| IMAGE_TYPES.contains(&part.mime.as_str()));
    forms.map(|part| ContentBlock::image(part.data.clone(), part.mime.clone())).collect()
}

/// What was shown, as text.
fn displayed(answer: &EvalAnswer) -> String {
    let plain = answer.displays.iter().filter_map(|display| display.parts.first());
    plain.map(|part| format!("{}\n", part.data)).collect()
}

fn is_missing_snapshot(error: &ClientError) -> bool {
    let missing = ErrorCode::SnapshotNotFound.name();
    matches!(error, ClientError::Api(failure) if failure.code == missing)
}

#[tool_router]
impl Server {
    /// Tools for the daemon of this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, tool_router: Self::tool_router() }
    }

    /// Start a new sandbox. Gives its id, which the other tools need.
    #[tool(annotations(title = "Create a sandbox", destructive_hint = false))]
    async fn create(&self, Parameters(given): Parameters<Create>) -> CallToolResult {
        answer(self.started(&given.template).await.map(|sandbox| shown(&sandbox)))
    }

    /// Run Python code in a sandbox. Variables, imports and open files stay for the next call.
    /// Gives what it printed and displayed, the value of its last expression, figures and other
    /// pictures as images, and the traceback if it failed.
    #[tool(annotations(title = "Run Python code"))]
    async fn run_code(&self, Parameters(given): Parameters<RunCode>) -> CallToolResult {
        let body = EvalRequest { code: given.code, timeout_secs: given.timeout_secs };
        let outcome = self.client.eval(&given.sandbox, &body).await;
        let images = outcome.as_ref().map(images).unwrap_or_default();
        let mut shown = answer(outcome.map(|answer| {
            json!({
                "result": answer.result.as_deref().map(shortened),
                "displayed": shortened(&displayed(&answer)),
                "stdout": shortened(&answer.stdout),
                "stderr": shortened(&answer.stderr),
                "error": answer.error.as_deref().map(shortened),
                "timed_out": answer.timed_out,
                "variables_lost": answer.state_lost,
            })
        }));
        shown.content.extend(images);
        shown
    }

    /// Run a shell command in a sandbox and wait for its end.
    #[tool(annotations(title = "Run a command"))]
    async fn run_command(&self, Parameters(given): Parameters<RunCommand>) -> CallToolResult {
        let mut body = ExecRequest::new(["/bin/sh", "-c", &given.command]);
        body.cwd = given.cwd;
        body.user = given.user;
        body.timeout_secs = given.timeout_secs;
        answer(self.client.exec(&given.sandbox, &body).await.map(|answer| {
            json!({
                "exit_code": answer.exit_code,
                "stdout": shortened(&answer.stdout),
                "stderr": shortened(&answer.stderr),
                "timed_out": answer.timed_out,
            })
        }))
    }

    /// Read a file of a sandbox. Gives `text`, or `base64` if it is not UTF-8.
    #[tool(annotations(title = "Read a file", read_only_hint = true))]
    async fn read_file(&self, Parameters(given): Parameters<ReadFile>) -> CallToolResult {
        let content = self.client.read_file(&given.sandbox, &given.path).await;
        answer(content.map(|bytes| match String::from_utf8(bytes) {
            Ok(text) => json!({ "text": shortened(&text) }),
            Err(error) => json!({ "base64": shortened(&STANDARD.encode(error.as_bytes())) }),
        }))
    }

    /// Write a file of a sandbox: all of it or nothing.
    #[tool(annotations(title = "Write a file"))]
    async fn write_file(&self, Parameters(given): Parameters<WriteFile>) -> CallToolResult {
        let bytes = given.text.len();
        let content = given.text.into_bytes();
        let written = self.client.write_file(&given.sandbox, &given.path, None, content).await;
        answer(written.map(|()| json!({ "path": given.path, "bytes": bytes })))
    }

    /// Branch a running sandbox: take a snapshot of this very instant and start children from it.
    /// The sandbox itself goes on. Use it to try several ways from one state, or to be able to go
    /// back.
    #[tool(annotations(title = "Branch a sandbox", destructive_hint = false))]
    async fn branch(&self, Parameters(given): Parameters<Branch>) -> CallToolResult {
        let body = BranchRequest { tag: given.tag, n: given.children, ..BranchRequest::default() };
        answer(self.client.branch(&given.sandbox, &body).await.map(|branch| {
            let children: Vec<Value> = branch.children.iter().map(child).collect();
            json!({
                "snapshot": branch.snapshot.tag,
                "pause_ms": branch.snapshot.pause_ms,
                "children": children,
            })
        }))
    }

    /// Start sandboxes from a snapshot: all or none.
    #[tool(annotations(title = "Fork a snapshot", destructive_hint = false))]
    async fn fork(&self, Parameters(given): Parameters<Fork>) -> CallToolResult {
        let body = CreateSandboxes::new(given.snapshot, given.n);
        let started = self.client.create_sandboxes(&body).await;
        answer(started.map(|all| json!({ "sandboxes": all.iter().map(shown).collect::<Vec<_>>() })))
    }

    /// List all sandboxes, snapshots and images.
    #[tool(annotations(title = "List everything", read_only_hint = true))]
    async fn list(&self) -> CallToolResult {
        answer(self.everything().await)
    }

    /// Put a sandbox back to what it was at a snapshot. Its id stays.
    #[tool(annotations(title = "Roll a sandbox back"))]
    async fn rollback(&self, Parameters(given): Parameters<Rollback>) -> CallToolResult {
        let sandbox = self.client.rollback(&given.sandbox, &given.snapshot).await;
        answer(sandbox.map(|sandbox| shown(&sandbox)))
    }

    /// See what a sandbox may reach on the network, and which connections and names it was refused,
    /// newest last.
    #[tool(annotations(title = "See a sandbox's network", read_only_hint = true))]
    async fn network(&self, Parameters(given): Parameters<Network>) -> CallToolResult {
        answer(self.reach(&given.sandbox).await)
    }

    /// Get an address that shows a server in a sandbox in a browser, for people to look at. Anybody
    /// who has the address reaches that one port. Without such addresses in the daemon it is an
    /// error.
    #[tool(annotations(title = "Show a port in a browser", destructive_hint = false))]
    async fn expose_port(&self, Parameters(given): Parameters<ExposePort>) -> CallToolResult {
        let body = CreatePortToken { ttl_secs: given.ttl_secs };
        let token = self.client.issue_port_token(&given.sandbox, given.port, &body).await;
        answer(
            token
                .map(|token| json!({ "url": token.url, "expires_at_unix": token.expires_at_unix })),
        )
    }

    /// Delete a sandbox or a snapshot.
    #[tool(annotations(title = "Delete a sandbox or a snapshot"))]
    async fn delete(&self, Parameters(given): Parameters<Delete>) -> CallToolResult {
        let deleted = if given.name.starts_with(SANDBOX_PREFIX) {
            self.client.delete_sandbox(&given.name).await
        } else {
            let dependents = if given.cascade { Dependents::Remove } else { Dependents::Refuse };
            self.client.delete_snapshot(&given.name, dependents).await
        };
        answer(deleted.map(|()| json!({ "deleted": given.name })))
    }
}

impl Server {
    /// A sandbox of the snapshot; of the image of that name, if there is no such snapshot.
    async fn started(&self, template: &str) -> Result<Sandbox, ClientError> {
        let body = CreateSandboxes::new(template, 1);
        let mut started = self.client.create_sandboxes(&body).await;
        if let Err(error) = &started
            && is_missing_snapshot(error)
            && self.client.images().await?.iter().any(|image| image.name == template)
        {
            self.client.create_snapshot(&CreateSnapshot::new(template, template)).await?;
            started = self.client.create_sandboxes(&body).await;
        }
        let problem = "no sandbox was started".to_owned();
        let target = self.client.target().to_string();
        let none = || ClientError::NotUnderstood { target, status: 201, problem };
        started?.into_iter().next().ok_or_else(none)
    }

    async fn reach(&self, sandbox: &str) -> Result<Value, ClientError> {
        let policy = self.client.network(sandbox).await?;
        let mut entries = self.client.network_log(sandbox, None, None).await?.entries;
        entries.retain(|entry| entry.outcome == FlowOutcome::Refused);
        entries.drain(..entries.len().saturating_sub(REFUSALS_SHOWN));
        let refused = entries.iter().map(|entry| {
            json!({
                "protocol": entry.protocol,
                "address": entry.address,
                "port": entry.port,
                "name": entry.name,
                "reason": entry.reason,
                "repeated": entry.repeated,
            })
        });
        Ok(json!({ "policy": policy, "refused": refused.collect::<Vec<_>>() }))
    }

    async fn everything(&self) -> Result<Value, ClientError> {
        let sandboxes = self.client.sandboxes().await?;
        let snapshots = self.client.snapshots().await?;
        let images = self.client.images().await?;
        let snapshots = snapshots.iter().map(|snapshot| {
            json!({
                "tag": snapshot.tag,
                "status": snapshot.status,
                "branched_from": snapshot.branched_from,
            })
        });
        Ok(json!({
            "sandboxes": sandboxes.iter().map(shown).collect::<Vec<_>>(),
            "snapshots": snapshots.collect::<Vec<_>>(),
            "images": images.iter().map(|image| &image.name).collect::<Vec<_>>(),
        }))
    }
}

/// A child of a branch: its sandbox or why there is none.
fn child(child: &Child) -> Value {
    match child {
        Child::Sandbox(sandbox) => shown(sandbox),
        Child::Error(error) => json!({ "error": error.error, "hint": error.hint }),
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("forkd", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }
}
