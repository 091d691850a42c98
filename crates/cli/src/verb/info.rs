//! `forkd info`: one sandbox.

use crate::console::output::{self, or_dash};
use crate::daemon::connect;
use crate::options::Global;
use crate::verb::{network, version};

/// Show details of a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd info sb-0123456789ab\n  \
    forkd info sb-0123456789ab --json")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let sandbox = client.sandbox(&options.sandbox).await?;
    if global.json {
        return output::json(&sandbox);
    }
    let accelerator = version::runs_on(&client.version().await?);
    let words: Vec<String> =
        sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let seconds = |secs: Option<u64>| secs.map(|secs| format!("{secs} s"));
    let names =
        sandbox.networks.iter().map(|network| format!("{} ({})", network.host_name, network.ipv4));
    let names = names.collect::<Vec<_>>().join(", ");
    let reaches = sandbox.guest_addr.is_some().then(|| network::summary(&sandbox.network));
    let mut facts = vec![
        ("sandbox", sandbox.id),
        ("state", sandbox.state.to_string()),
        ("snapshot", sandbox.snapshot_tag),
        ("branches", sandbox.branch_count.to_string()),
        ("host name", sandbox.hostname),
        ("VMM", or_dash(sandbox.pid.map(|pid| format!("process {pid}")))),
        ("accelerator", accelerator),
        ("isolation", sandbox.isolation.to_string()),
        ("age", output::age(sandbox.created_at_unix)),
    ];
    let more = [
        ("started in", sandbox.start_ms.map(output::milliseconds)),
        ("memory limit", sandbox.memory_limit_mib.map(|mib| format!("{mib} MiB"))),
        ("CPU limit", sandbox.cpu_limit.map(|cpus| cpus.to_string())),
        ("reaches", reaches),
        ("refused", Some(sandbox.network_refusals).filter(|&n| n > 0).map(|n| n.to_string())),
        ("address", sandbox.guest_addr),
        ("networks", Some(names).filter(|names| !names.is_empty())),
        ("namespace", sandbox.netns),
        ("metadata", Some(words.join(", ")).filter(|text| !text.is_empty())),
        ("time to live", seconds(sandbox.ttl_secs)),
        ("idle timeout", seconds(sandbox.idle_timeout_secs)),
        ("error", sandbox.error),
    ];
    facts.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
    output::facts(&facts)
}
