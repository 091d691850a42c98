//! `forkd snapshot`: one snapshot.

mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use forkd_api::CompactSnapshot;
use forkd_client::{Dependents, ImportArtifact};

use crate::console::output::{self, or_dash};
use crate::console::progress;
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::Global;
use crate::verb::each;

/// Show, compact, export, import or remove snapshots
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd snapshot info py\n  \
    forkd snapshot compact before-upgrade --to golden\n  \
    forkd snapshot export golden golden.tar\n  \
    forkd snapshot export golden - | ssh host forkd snapshot import -\n  \
    forkd snapshot import golden.tar --tag theirs\n  \
    forkd snapshot rm py --cascade\n  \
    forkd snapshot rm py --force")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show details of a snapshot and how it depends on others
    Info {
        /// The snapshot
        tag: String,
    },
    /// Make a snapshot of the same state that depends on no other
    Compact {
        /// The snapshot
        tag: String,
        /// Tag of the new snapshot
        #[arg(long, value_name = "TAG")]
        to: String,
        /// Do not wait for it; see `forkd operations`
        #[arg(long)]
        no_wait: bool,
    },
    /// Write a snapshot to a file that another daemon can import
    ///
    /// The file holds the memory and disk of the sandbox, with every password and key that programs
    /// had read there. The image is not in it.
    Export {
        /// The snapshot
        tag: String,
        /// Where to write it, `-` for standard output; TAG.tar by default
        file: Option<PathBuf>,
    },
    /// Make a snapshot of a file that a daemon has exported
    ///
    /// The daemon must trust the key that signed it: see `forkd key`.
    Import {
        /// The file, `-` for standard input
        file: PathBuf,
        /// Tag of the snapshot; the one that it had by default
        #[arg(long)]
        tag: Option<String>,
        /// Import it whoever signed it; a forged file can attack this host
        #[arg(long)]
        trust_once: bool,
    },
    /// Remove snapshots
    Rm {
        /// The snapshots
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<String>,
        /// Also remove the sandboxes and snapshots that depend on them
        #[arg(long, conflicts_with = "force")]
        cascade: bool,
        /// Remove them even if others depend on them; those keep working
        #[arg(long)]
        force: bool,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    match options.what {
        What::Info { tag } => info(global, &tag).await?,
        What::Compact { tag, to, no_wait } => {
            let body = CompactSnapshot { wait: !no_wait, ..CompactSnapshot::new(to) };
            compact(global, &tag, &body).await?;
        }
        What::Export { tag, file } => transfer::export(global, &tag, file).await?,
        What::Import { file, tag, trust_once } => {
            let how = ImportArtifact { tag, trust_once };
            transfer::import(global, &file, &how).await?;
        }
        What::Rm { tags, cascade, force } => {
            let dependents = match (cascade, force) {
                (true, _) => Dependents::Remove,
                (false, true) => Dependents::Keep,
                (false, false) => Dependents::Refuse,
            };
            let client = connect::client(global).await?;
            let remove = async |tag: &str| client.delete_snapshot(tag, dependents).await;
            return each::removed(global, tags, remove).await;
        }
    }
    Ok(Exit::Ok.into())
}

async fn compact(global: &Global, tag: &str, body: &CompactSnapshot) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let work = client.compact_snapshot(tag, body);
    let snapshot = progress::during(&format!("compact {tag}"), work).await?;
    if global.json {
        return output::json(&snapshot);
    }
    output::line(&snapshot.tag)
}

async fn info(global: &Global, tag: &str) -> anyhow::Result<()> {
    let info = connect::client(global).await?.snapshot_info(tag).await?;
    if global.json {
        return output::json(&info);
    }
    let snapshot = info.snapshot;
    let list = |names: Vec<String>| or_dash(Some(names.join(", ")).filter(|text| !text.is_empty()));
    let mut lines = vec![
        ("tag", snapshot.tag),
        ("status", snapshot.status.to_string()),
        ("durable", if snapshot.durable { "yes" } else { "no" }.to_owned()),
        ("image", snapshot.image),
        ("memory", output::size(snapshot.mem_size_mib << 20)),
        ("vcpus", snapshot.vcpus.to_string()),
        ("cpu", or_dash(snapshot.cpu.map(|cpu| cpu.to_string()))),
        ("private", if snapshot.private { "yes" } else { "no" }.to_owned()),
        ("age", output::age(snapshot.created_at_unix)),
        ("directory", snapshot.dir),
        ("branched from", or_dash(snapshot.branched_from)),
        ("ancestors", list(info.ancestors)),
        ("dependents", list(info.dependents)),
        ("layers", info.chain_depth.to_string()),
        ("own layer", output::size(info.memory_layer_bytes)),
    ];
    let figures = [
        ("pause", snapshot.pause_ms.map(output::milliseconds)),
        ("ready after", snapshot.ready_ms.map(output::milliseconds)),
        ("dirty", snapshot.dirty_bytes.map(output::size)),
        ("stored", snapshot.stored_bytes.map(output::size)),
        ("error", snapshot.error),
    ];
    lines.extend(figures.into_iter().filter_map(|(name, value)| Some((name, value?))));
    output::facts(&lines)
}
