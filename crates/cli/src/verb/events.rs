//! `forkd events`: what happens, as it happens.

use anyhow::bail;
use forkd_client::{EventFilter, ServerEvent};
use serde_json::{Value, json};

use crate::console::output::{self, Reader};
use crate::console::report;
use crate::daemon::connect;
use crate::options::Global;

/// Print events of sandboxes, snapshots and operations as they happen
///
/// Each event is a line: its number, its type, what it is about. With --json each line is an object
/// with everything known about the event.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd events\n  \
    forkd events --type snapshot. --json\n  \
    forkd events --sandbox sb-0123456789ab")]
pub(crate) struct Options {
    /// Only events whose type starts with this, such as sandbox. or operation.ended
    #[arg(long = "type", value_name = "PREFIX")]
    kind: Option<String>,
    /// Only events of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only events of this snapshot
    #[arg(long, value_name = "TAG")]
    snapshot: Option<String>,
    /// Start after the event with this number
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let Options { kind, sandbox, snapshot, after } = options;
    let client = connect::client(global).await?;
    let mut events = client.events(&EventFilter { kind, sandbox, snapshot }, after).await?;
    while let Some(event) = events.next().await? {
        let data: Value = serde_json::from_str(&event.data)?;
        let line = if global.json {
            json!({ "id": event.id, "type": event.kind, "data": data }).to_string()
        } else {
            report::printable_line(&shown(&event, &data))
        };
        if output::flowing(format!("{line}\n").as_bytes())? == Reader::Gone {
            return Ok(());
        }
    }
    bail!("the daemon stopped")
}

fn shown(event: &ServerEvent, data: &Value) -> String {
    let text = |name: &str| data.get(name).and_then(Value::as_str).unwrap_or_default();
    let name = if text("id").is_empty() { text("tag") } else { text("id") };
    let state = if text("state").is_empty() { text("status") } else { text("state") };
    let id = event.id.as_deref().unwrap_or("-");
    let line = format!("{id}  {:<18}  {name}  {state}  {}", event.kind, text("step"));
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_thing_and_its_state() {
        let event = |kind: &str| ServerEvent {
            id: Some("7".into()),
            kind: kind.into(),
            ..ServerEvent::default()
        };
        let snapshot = json!({ "tag": "t", "status": "ready" });
        assert_eq!(shown(&event("snapshot.ready"), &snapshot), "7  snapshot.ready      t  ready");
        let operation = json!({ "id": "op-1", "state": "running", "step": "boot" });
        let line = shown(&event("operation.progress"), &operation);
        assert_eq!(line, "7  operation.progress  op-1  running  boot");
        assert_eq!(shown(&event("lost"), &json!({ "events": 3 })), "7  lost");
    }
}
