//! `forkd cp`: copy a file into or out of a sandbox.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use forkd_client::FileAttributes;
use serde_json::json;

use crate::console::output;
use crate::console::progress::Bar;
use crate::console::report::Hinted;
use crate::daemon::connect;
use crate::options::Global;
use crate::options::place::{Place, Remote};

/// Copy a file into or out of a sandbox
///
/// One side is SANDBOX:/PATH, the other a local path.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd cp data.csv sb-0123456789ab:/work/data.csv\n  \
    forkd cp --user me data.csv sb-0123456789ab:/home/me/data.csv\n  \
    forkd cp sb-0123456789ab:/work/result.json .")]
pub(crate) struct Options {
    /// What to copy
    source: String,
    /// Where to copy it; a directory gets a file of the same name
    destination: String,
    /// Make this user of the sandbox own the copy; otherwise root owns new files
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let bytes = match (Place::parse(&options.source), Place::parse(&options.destination)) {
        (Place::Local(source), Place::Sandbox(to)) => {
            upload(global, &source, to, options.user.as_deref()).await?
        }
        (Place::Sandbox(_), Place::Local(_)) if options.user.is_some() => {
            let text = "--user is for a copy in a sandbox";
            return Err(Hinted::usage(text, "leave it out: the copy here is yours").into());
        }
        (Place::Sandbox(from), Place::Local(destination)) => {
            download(global, &from, destination).await?
        }
        (Place::Local(_), Place::Local(_)) | (Place::Sandbox(_), Place::Sandbox(_)) => {
            let text = "one side must be in a sandbox, the other one here";
            let hint =
                "write the one in a sandbox as SANDBOX:/PATH, such as sb-0123456789ab:/tmp/file";
            return Err(Hinted::usage(text, hint).into());
        }
    };
    if global.json {
        return output::json(&json!({ "bytes": bytes }));
    }
    Ok(())
}

async fn upload(
    global: &Global,
    source: &Path,
    to: Remote,
    user: Option<&str>,
) -> anyhow::Result<u64> {
    let failed = || format!("read `{}`", source.display());
    let metadata = fs::metadata(source).with_context(failed)?;
    let (content, bytes): (Box<dyn io::Read + Send>, u64) = match metadata.is_file() {
        true => (Box::new(fs::File::open(source).with_context(failed)?), metadata.len()),
        // A pipe tells its length at its end.
        false => {
            let content = fs::read(source).with_context(failed)?;
            let bytes = content.len() as u64;
            (Box::new(io::Cursor::new(content)), bytes)
        }
    };
    let path = with_name_if_directory(to.path, source.file_name().and_then(|name| name.to_str()));
    let mode = Some(metadata.permissions().mode() & 0o777);
    let client = connect::client(global).await?;
    // It stays until the guest has written what is sent.
    let bar = Arc::new(Bar::of_bytes(&path, bytes));
    let shown = Arc::clone(&bar);
    let sent = move |count| shown.at(count);
    let attributes = FileAttributes { mode, user };
    client.write_file_from(&to.sandbox, &path, attributes, (content, bytes), sent).await?;
    Ok(bytes)
}

/// `path`, or a file of this name in it when it ends as a directory does.
fn with_name_if_directory(path: String, name: Option<&str>) -> String {
    match name {
        Some(name) if path.ends_with('/') => path + name,
        _ => path,
    }
}

async fn download(global: &Global, from: &Remote, destination: PathBuf) -> anyhow::Result<u64> {
    let client = connect::client(global).await?;
    let mut source = client.open_file(&from.sandbox, &from.path).await?;
    // Of a link it is the link's: then there is no bar.
    let told = client.stat_file(&from.sandbox, &from.path).await;
    let bar = Bar::of_bytes(&from.path, told.map(|file| file.size_bytes).unwrap_or_default());
    // What cannot be read leaves the destination as it is.
    let mut piece = source.next().await?;
    let destination = match from.path.rsplit('/').next() {
        Some(name) if destination.is_dir() && !matches!(name, "" | "." | "..") => {
            destination.join(name)
        }
        _ => destination,
    };
    let failed = || format!("write `{}`", destination.display());
    let mut file = fs::File::create(&destination).with_context(failed)?;
    let mut bytes = 0;
    while let Some(content) = piece {
        file.write_all(&content).with_context(failed)?;
        bytes += content.len() as u64;
        bar.at(bytes);
        let next = source.next().await;
        piece = next.with_context(|| format!("`{}` is not complete", destination.display()))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_the_sandbox_gets_a_file_of_the_same_name() {
        assert_eq!(with_name_if_directory("/tmp/".into(), Some("a")), "/tmp/a");
        assert_eq!(with_name_if_directory("/tmp/b".into(), Some("a")), "/tmp/b");
    }
}
