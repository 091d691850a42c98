//! `forkd fork`: start sandboxes from a snapshot.

use forkd_api::CreateSandboxes;

use crate::console::output;
use crate::daemon::connect;
use crate::options::{Global, Network, key_value};

/// Start sandboxes from a snapshot
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd fork py -n 3\n  \
    forkd fork py --idle-timeout 600 --metadata user=ann\n  \
    forkd fork py --allow api.example.com:443\n  \
    forkd fork py -n 3 --join team --metadata name=worker")]
pub(crate) struct Options {
    /// The snapshot
    tag: String,
    /// Start this many: all of them, or none
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 1)]
    count: u32,
    /// Attach a label, such as user=ann; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
    /// Remove them after this many seconds
    #[arg(long, value_name = "SECS")]
    ttl: Option<u64>,
    /// Kill a sandbox that needs more host memory than this, guest and VMM together
    #[arg(long, value_name = "MIB")]
    memory_limit_mib: Option<u64>,
    #[command(flatten)]
    network: Network,
    /// Give each VMM a network namespace of its own
    #[arg(long)]
    per_child_netns: bool,
    /// Remove a sandbox that nobody used for this many seconds
    #[arg(long, value_name = "SECS")]
    idle_timeout: Option<u64>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let request = CreateSandboxes {
        metadata: options.metadata.into_iter().collect(),
        ttl_secs: options.ttl,
        idle_timeout_secs: options.idle_timeout,
        memory_limit_mib: options.memory_limit_mib,
        network: options.network.policy(),
        per_child_netns: options.per_child_netns,
        ..CreateSandboxes::new(options.tag, options.count)
    };
    let sandboxes = client.create_sandboxes(&request).await?;
    if global.json {
        return output::json(&sandboxes);
    }
    sandboxes.iter().try_for_each(|sandbox| output::line(&sandbox.id))
}
