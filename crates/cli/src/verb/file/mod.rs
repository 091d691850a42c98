//! `forkd file`: files and directories of a sandbox.

mod watch;

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use forkd_api::FileEntry;
use forkd_client::Client;
use forkd_types::FileKind;
use serde_json::json;

use crate::console::output::{self, Align, Table};
use crate::console::report;
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::Global;
use crate::options::place::{Remote, depth};

/// List, show, remove, watch and make files in a sandbox
///
/// Write a path as SANDBOX:/PATH. `forkd cp` copies files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd file ls sb-0123456789ab:/srv\n  \
    forkd file stat sb-0123456789ab:/srv\n  \
    forkd file cat sb-0123456789ab:/etc/hostname\n  \
    forkd file mkdir sb-0123456789ab:/srv/a/b\n  \
    forkd file rm sb-0123456789ab:/srv/a --recursive\n  \
    forkd file watch sb-0123456789ab:/srv --recursive")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List a directory
    Ls {
        /// SANDBOX:/PATH
        directory: Remote,
    },
    /// Show details of a file or directory; symbolic links are not followed
    Stat {
        /// SANDBOX:/PATH
        path: Remote,
    },
    /// Print a file
    Cat {
        /// SANDBOX:/PATH
        file: Remote,
    },
    /// Make a directory and its missing parents
    Mkdir {
        /// SANDBOX:/PATH
        directory: Remote,
        /// Make this user of the sandbox own new directories; otherwise root owns them
        #[arg(short, long, value_name = "USER[:GROUP]")]
        user: Option<String>,
    },
    /// Remove a file, a symbolic link or a directory
    Rm {
        /// SANDBOX:/PATH
        path: Remote,
        /// Remove a directory with everything in it
        #[arg(short, long)]
        recursive: bool,
    },
    Watch(watch::Options),
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    match options.what {
        What::Ls { directory } => list(global, &client, &directory).await?,
        What::Stat { path } => {
            show(global, &client.stat_file(&path.sandbox, &path.path).await?)?;
        }
        What::Cat { file } => {
            let mut content = client.open_file(&file.sandbox, &file.path).await?;
            while let Some(piece) = content.next().await? {
                output::bytes(&piece)?;
            }
        }
        What::Mkdir { directory, user } => {
            let Remote { sandbox, path } = &directory;
            client.make_directory(sandbox, path, user.as_deref()).await?;
            done(global, "made", &directory)?;
        }
        What::Rm { path, recursive } => {
            client.remove_file(&path.sandbox, &path.path, depth(recursive)).await?;
            done(global, "removed", &path)?;
        }
        What::Watch(options) => watch::run(global, &client, options).await?,
    }
    Ok(Exit::Ok.into())
}

fn done(global: &Global, what: &str, place: &Remote) -> anyhow::Result<()> {
    if global.json {
        return output::json(&json!({ what: [place.path] }));
    }
    Ok(())
}

async fn list(global: &Global, client: &Client, directory: &Remote) -> anyhow::Result<()> {
    let entries = client.list_files(&directory.sandbox, &directory.path).await?;
    if global.json {
        return output::json(&entries);
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("KIND", Align::Left),
        ("MODE", Align::Left),
        ("OWNER", Align::Left),
        ("SIZE", Align::Right),
        ("CHANGED", Align::Right),
    ]);
    for entry in entries {
        let size =
            if entry.kind == FileKind::File { output::size(entry.size_bytes) } else { "-".into() };
        table.row([
            report::printable_line(&entry.name),
            entry.kind.to_string(),
            entry.mode.clone(),
            owner(&entry),
            size,
            // A guest's clock may be ahead of ours.
            output::age(entry.modified_at_unix),
        ]);
    }
    table.print("the directory is empty")
}

/// The user and the group, or a dash for what is not known.
fn owner(entry: &FileEntry) -> String {
    match (&entry.owner, &entry.group) {
        (Some(owner), Some(group)) => report::printable_line(&format!("{owner}:{group}")),
        _ => "-".to_owned(),
    }
}

fn show(global: &Global, entry: &FileEntry) -> anyhow::Result<()> {
    if global.json {
        return output::json(entry);
    }
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(entry.modified_at_unix);
    output::facts(&[
        ("path", report::printable_line(&entry.path)),
        ("kind", entry.kind.to_string()),
        ("mode", entry.mode.clone()),
        ("owner", owner(entry)),
        ("size", format!("{} ({})", output::size(entry.size_bytes), entry.size_bytes)),
        ("changed", humantime::format_rfc3339_seconds(changed).to_string()),
    ])
}
