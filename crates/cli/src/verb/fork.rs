//! `forkd fork`: start sandboxes from a snapshot.

use forkd_api::CreateSandboxes;

use crate::args::Global;
use crate::{connect, output};

/// Start sandboxes from a snapshot, and print their ids
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd fork py -n 3\n  \
    forkd fork py --idle-timeout 600 --metadata user=ann")]
pub(crate) struct Options {
    /// The snapshot
    tag: String,
    /// How many: all of them, or none
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 1)]
    count: u32,
    /// Words of your own to find them by, such as user=ann; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
    /// Remove them after so many seconds
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// End each whose VMM comes to need more memory of the host, guest and VMM together
    #[arg(long, value_name = "MIB")]
    memory_limit_mib: Option<u64>,
    /// Give each VMM a network namespace of its own
    #[arg(long)]
    per_child_netns: bool,
    /// Remove each when it was not used for so many seconds
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
}

/// A key and its value.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let request = CreateSandboxes {
        metadata: options.metadata.into_iter().collect(),
        ttl_secs: options.ttl,
        idle_timeout_secs: options.idle_timeout,
        memory_limit_mib: options.memory_limit_mib,
        per_child_netns: options.per_child_netns,
        ..CreateSandboxes::new(options.tag, options.count)
    };
    let sandboxes = client.create_sandboxes(&request).await?;
    if global.json {
        return output::json(&sandboxes);
    }
    sandboxes.iter().try_for_each(|sandbox| output::line(&sandbox.id))
}
