//! Private networks: `forkd network create`, `ls`, `rm`, `join` and `leave`.

use std::process::ExitCode;

use forkd_api::{Membership, Network};

use crate::console::output::{self, Align, Table};
use crate::daemon::connect;
use crate::options::Global;
use crate::verb::each;

pub(super) async fn create(global: &Global, name: &str) -> anyhow::Result<()> {
    let network = connect::client(global).await?.create_network(name).await?;
    if global.json { output::json(&network) } else { output::line(&network.name) }
}

pub(super) async fn list(global: &Global) -> anyhow::Result<()> {
    let networks = connect::client(global).await?.networks().await?;
    if global.json {
        return output::json(&networks);
    }
    let columns = [("NETWORK", Align::Left), ("MEMBERS", Align::Right), ("AGE", Align::Left)];
    let mut table = Table::new(&columns);
    for Network { name, created_at_unix, members } in networks {
        table.row([name, members.len().to_string(), output::age(created_at_unix)]);
    }
    table.print("no networks; create one with `forkd network create NAME`")
}

pub(super) async fn members(global: &Global, name: &str) -> anyhow::Result<()> {
    let network = connect::client(global).await?.private_network(name).await?;
    if global.json {
        return output::json(&network);
    }
    let columns = [("SANDBOX", Align::Left), ("HOST NAME", Align::Left), ("ADDRESS", Align::Left)];
    let mut table = Table::new(&columns);
    for Membership { sandbox, host_name, ipv4, .. } in network.members {
        table.row([sandbox, host_name, ipv4]);
    }
    table.print("no members; add one with `forkd network join SANDBOX NAME`")
}

pub(super) async fn remove(global: &Global, names: Vec<String>) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    each::removed(global, names, async |name: &str| client.remove_network(name).await).await
}

/// Prints the name by which other members reach the sandbox.
pub(super) async fn join(global: &Global, sandbox: &str, name: &str) -> anyhow::Result<()> {
    let sandbox = connect::client(global).await?.join_network(sandbox, name).await?;
    if global.json {
        return output::json(&sandbox);
    }
    let joined = sandbox.networks.iter().filter(|membership| membership.network == name);
    joined.map(|membership| &membership.host_name).try_for_each(|name| output::line(name))
}

pub(super) async fn leave(global: &Global, sandbox: &str, name: &str) -> anyhow::Result<()> {
    let sandbox = connect::client(global).await?.leave_network(sandbox, name).await?;
    if global.json { output::json(&sandbox) } else { Ok(()) }
}
