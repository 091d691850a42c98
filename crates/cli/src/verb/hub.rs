//! `forkd hub`: what registries have that was pushed from a daemon.

use clap::Subcommand;
use forkd_api::HubSnapshot;

use crate::console::output::{self, Align, Table};
use crate::console::report;
use crate::daemon::connect;
use crate::options::Global;

/// Look for snapshots in a registry, and at one before you pull it; for admins
///
/// The daemon asks the registry, with the credentials that `docker login` keeps for its user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd hub search registry.example\n  \
    forkd hub search registry.example team/\n  \
    forkd hub info registry.example/team/warm:v1")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the snapshots in a registry
    ///
    /// Some registries, Docker Hub among them, do not list what they have.
    Search {
        /// The host of the registry, with a port if it has one of its own
        registry: String,
        /// List only repositories with this in their name
        #[arg(default_value = "")]
        name: String,
    },
    /// Show what a snapshot is, who signed it, and whether it starts here; fetches no memory
    Info {
        /// Where it is: REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:HEX
        #[arg(value_name = "REF")]
        reference: String,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    match options.what {
        What::Info { reference } => {
            let found = client.hub_snapshot(&reference).await?;
            if global.json { output::json(&found) } else { show(found) }
        }
        What::Search { registry, name } => {
            let found = client.hub_search(&registry, &name).await?;
            if global.json {
                return output::json(&found);
            }
            let columns =
                [("SNAPSHOT", Align::Left), ("SIZE", Align::Right), ("DIGEST", Align::Left)];
            let mut table = Table::new(&columns);
            for entry in found.snapshots {
                table.row([entry.reference, output::size(entry.bytes), entry.digest]);
            }
            table.print("no snapshots found")?;
            if !found.is_complete {
                report::remark("the registry has more; give a NAME to look for");
            }
            Ok(())
        }
    }
}

fn show(found: HubSnapshot) -> anyhow::Result<()> {
    let signer = match (found.trusted, found.trusted_as) {
        (false, _) => "not trusted".to_owned(),
        (true, None) => "this daemon".to_owned(),
        (true, Some(name)) => format!("trusted as {name}"),
    };
    let parts = format!("{} memory layers, {} overlays", found.memory_layers, found.disk_overlays);
    let machine = format!("{} MiB, {} vCPUs", found.mem_size_mib, found.vcpus);
    let vmm = format!("QEMU {} ({}, {})", found.vmm_version, found.accelerator, found.cpu_model);
    output::facts(&[
        ("snapshot", found.reference),
        ("tag", found.tag),
        ("taken", output::age(found.created_at_unix)),
        ("size", format!("{}: {parts}", output::size(found.bytes))),
        ("below it", output::or_dash(Some(found.ancestors.join(", ")).filter(|t| !t.is_empty()))),
        ("key", found.key),
        ("signed by", signer),
        ("image", found.image),
        ("machine", machine),
        ("runs on", vmm),
        ("starts here", found.problem.map_or("yes".to_owned(), |why| format!("no: {why}"))),
    ])
}
