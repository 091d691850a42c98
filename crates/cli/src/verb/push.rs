//! `forkd push`: a snapshot into a registry.

use forkd_types::OperationKind;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::follow;
use crate::options::Global;

const WARNING: &str = "warning: the registry gets the memory and disk of the sandbox, with every \
                       password and key that programs had read there";

/// Put a snapshot into a registry, where other daemons pull it; for admins
///
/// The registry gets the memory and disk of the sandbox, with every password and key that programs
/// had read there. The image stays here. What the registry has is not sent. The daemon uses the
/// credentials that `docker login` keeps for its user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd push warm registry.example/team/warm:v1")]
pub(crate) struct Options {
    /// The snapshot
    tag: String,
    /// Where to: REGISTRY/NAME:TAG
    #[arg(value_name = "REF")]
    reference: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    report::remark(WARNING);
    let client = connect::client(global).await?;
    let work = client.push_snapshot(&options.tag, &options.reference);
    let pushed = follow::bytes_of(&client, OperationKind::Push, &options.reference, work).await?;
    if global.json {
        return output::json(&pushed);
    }
    let (sent, all) = (output::size(pushed.bytes_sent), output::size(pushed.bytes));
    report::remark(&format!("sent {sent} of {all}"));
    output::line(&pushed.reference)
}
