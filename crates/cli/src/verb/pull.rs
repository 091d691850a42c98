//! `forkd pull`: a snapshot out of a registry.

use forkd_api::PullSnapshot;
use forkd_types::OperationKind;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::follow;
use crate::options::Global;

const RISK: &str = "warning: pulling whoever signed it: the snapshot decides what runs in its \
                    sandboxes, and a forged device state can attack the VMM on this host";

/// Make a snapshot of what a daemon has pushed to a registry; for admins
///
/// The daemon must trust the key that signed it: see `forkd key`. It uses the credentials that
/// `docker login` keeps for its user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd pull registry.example/team/warm:v1\n  \
    forkd pull registry.example/team/warm:v1 --tag theirs")]
pub(crate) struct Options {
    /// Where from: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:HEX
    #[arg(value_name = "REF")]
    reference: String,
    /// Tag of the snapshot; the one that it had by default
    #[arg(long)]
    tag: Option<String>,
    /// Pull it whoever signed it; a forged one can attack this host
    #[arg(long)]
    trust_once: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let Options { reference, tag, trust_once } = options;
    if trust_once {
        report::remark(RISK);
    }
    let client = connect::client(global).await?;
    let body = PullSnapshot { reference, tag, trust_once };
    let work = client.pull_snapshot(&body);
    let snapshot = follow::bytes_of(&client, OperationKind::Pull, &body.reference, work).await?;
    if global.json {
        return output::json(&snapshot);
    }
    output::line(&snapshot.tag)
}
