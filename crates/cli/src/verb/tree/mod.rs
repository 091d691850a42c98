//! `forkd tree`: where every snapshot and sandbox comes from.

mod lineage;

use forkd_api::{Sandbox, Snapshot};
use serde_json::json;

use crate::console::manner;
use crate::console::output::{self, Align, Table, or_dash};
use crate::console::report;
use crate::console::report::Hinted;
use crate::daemon::connect;
use crate::options::Global;
use crate::verb::network;

use lineage::{Leaf, Node, Thing};

/// Show where snapshots and sandboxes come from
///
/// Sandboxes are shown below the snapshot that they started from, and branches below the sandbox
/// that they were taken of. If that was removed, or rolled back to the branch, the branch is shown
/// below the snapshot that it builds on. SIZE is what the snapshot itself stores; PAUSE is how long
/// its source was paused. The last column says what a sandbox reaches on the network, and how often
/// it was refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd tree\n  \
    forkd tree py\n  \
    forkd tree --json | jq '.[] | select(.depth == 0)'")]
pub(crate) struct Options {
    /// Show only what is below this snapshot or sandbox
    name: Option<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    // Sandboxes first: what they come from is there then, unless it was removed.
    let sandboxes = client.sandboxes().await?;
    let mut snapshots = client.snapshots().await?;
    for snapshot in snapshots.iter_mut().filter(|snapshot| snapshot.stored_bytes.is_none()) {
        // A list does not tell it of templates. One that was removed meanwhile has no size.
        let info = client.snapshot_info(&snapshot.tag).await.ok();
        snapshot.stored_bytes = info.map(|info| info.memory_layer_bytes).filter(|size| *size > 0);
    }
    let nodes = lineage::of(snapshots, sandboxes);
    let nodes = match &options.name {
        None => nodes,
        Some(name) => lineage::below(nodes, name).ok_or_else(|| {
            let text = format!("there is no snapshot and no sandbox `{name}`");
            Hinted::new(text, "`forkd tree` shows all that there are")
        })?,
    };
    print(global, &nodes)
}

fn print(global: &Global, nodes: &[Node]) -> anyhow::Result<()> {
    if global.json {
        return output::json(&nodes.iter().map(as_json).collect::<Vec<_>>());
    }
    if manner::is_quiet() {
        return nodes.iter().try_for_each(|node| output::line(node.thing.name()));
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("SIZE", Align::Right),
        ("PAUSE", Align::Right),
        ("AGE", Align::Right),
        ("", Align::Left),
    ]);
    for node in nodes {
        let name = format!("{}{}", node.drawing, node.thing.name());
        match &node.thing {
            Thing::Snapshot(snapshot) => table.row(snapshot_row(name, snapshot)),
            Thing::Sandbox(sandbox) => table.row(sandbox_row(name, sandbox)),
        }
    }
    table.print("nothing here yet; make a snapshot with `forkd template build IMAGE --tag TAG`")
}

fn snapshot_row(name: String, snapshot: &Snapshot) -> [String; 6] {
    let state = if snapshot.durable { "durable" } else { snapshot.status.as_str() };
    let remark = match (&snapshot.error, &snapshot.branched_from, &snapshot.parent_tag) {
        (Some(error), _, _) => report::printable_line(error),
        (None, Some(source), _) => format!("branch of {source}"),
        (None, None, Some(parent)) => format!("of {parent}"),
        (None, None, None) => format!("{}, {} MiB", snapshot.image, snapshot.mem_size_mib),
    };
    [
        name,
        state.to_owned(),
        or_dash(snapshot.stored_bytes.map(output::size)),
        or_dash(snapshot.pause_ms.map(output::milliseconds)),
        output::age(snapshot.created_at_unix),
        remark,
    ]
}

fn sandbox_row(name: String, sandbox: &Sandbox) -> [String; 6] {
    let reaches = || format!("reaches {}", network::summary(&sandbox.network));
    let refusals = Some(sandbox.network_refusals).filter(|refusals| *refusals > 0);
    let remarks = [
        match sandbox.branch_count {
            0 => None,
            1 => Some("1 branch".to_owned()),
            count => Some(format!("{count} branches")),
        },
        sandbox.guest_addr.is_some().then(reaches),
        refusals.map(|refusals| format!("{refusals} refused")),
    ];
    let remarks = remarks.into_iter().flatten().collect::<Vec<_>>().join("; ");
    [
        name,
        sandbox.state.to_string(),
        "-".to_owned(),
        "-".to_owned(),
        output::age(sandbox.created_at_unix),
        sandbox.error.as_deref().map_or(remarks, report::printable_line),
    ]
}

fn as_json(node: &Node) -> serde_json::Value {
    let (kind, thing) = match &node.thing {
        Thing::Snapshot(snapshot) => ("snapshot", json!(snapshot)),
        Thing::Sandbox(sandbox) => ("sandbox", json!(sandbox)),
    };
    let Leaf { depth, parent } = &node.leaf;
    let name = node.thing.name();
    json!({ "kind": kind, "name": name, "parent": parent, "depth": depth, kind: thing })
}
