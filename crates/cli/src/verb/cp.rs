//! `forkd cp`: copy a file into or out of a sandbox.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forkd_types::SandboxId;
use serde_json::json;

use crate::args::Global;
use crate::report::Hinted;
use crate::{connect, output};

/// Copy a file into or out of a sandbox
///
/// One side is SANDBOX:/PATH, the other a local path.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd cp data.csv sb-0123456789ab:/work/data.csv\n  \
    forkd cp sb-0123456789ab:/work/result.json .")]
pub(crate) struct Options {
    /// From where
    source: String,
    /// Where to; a directory means a file of the same name in it
    destination: String,
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Sandbox { id: String, path: String },
}

impl Place {
    /// `sb-...:/path` is in a sandbox; anything else is local, a name with a colon included.
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if id.parse::<SandboxId>().is_ok() => {
                Self::Sandbox { id: id.to_owned(), path: path.to_owned() }
            }
            _ => Self::Local(PathBuf::from(text)),
        }
    }
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let bytes = match (Place::parse(&options.source), Place::parse(&options.destination)) {
        (Place::Local(source), Place::Sandbox { id, path }) => {
            upload(global, &source, &id, path).await?
        }
        (Place::Sandbox { id, path }, Place::Local(destination)) => {
            download(global, &id, &path, destination).await?
        }
        (Place::Local(_), Place::Local(_)) | (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            let text = "exactly one side must be in a sandbox";
            let hint = "write it as SANDBOX:/PATH, such as sb-0123456789ab:/tmp/file";
            return Err(Hinted::usage(text, hint).into());
        }
    };
    if global.json {
        return output::json(&json!({ "bytes": bytes }));
    }
    Ok(())
}

async fn upload(global: &Global, source: &Path, id: &str, path: String) -> anyhow::Result<usize> {
    let failed = || format!("read `{}`", source.display());
    let metadata = fs::metadata(source).with_context(failed)?;
    let content = fs::read(source).with_context(failed)?;
    let path = with_name_if_directory(path, source.file_name().and_then(|name| name.to_str()));
    let bytes = content.len();
    let mode = metadata.permissions().mode() & 0o777;
    connect::client(global).await?.write_file(id, &path, Some(mode), content).await?;
    Ok(bytes)
}

/// `path`, or a file of this name in it when it ends as a directory does.
fn with_name_if_directory(path: String, name: Option<&str>) -> String {
    match name {
        Some(name) if path.ends_with('/') => path + name,
        _ => path,
    }
}

async fn download(
    global: &Global,
    id: &str,
    path: &str,
    destination: PathBuf,
) -> anyhow::Result<usize> {
    let content = connect::client(global).await?.read_file(id, path).await?;
    let destination = match path.rsplit('/').next() {
        Some(name) if destination.is_dir() && !matches!(name, "" | "." | "..") => {
            destination.join(name)
        }
        _ => destination,
    };
    fs::write(&destination, &content)
        .with_context(|| format!("write `{}`", destination.display()))?;
    Ok(content.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_before_the_colon_means_a_sandbox() {
        let inside = Place::parse("sb-0123456789ab:/a:b");
        let expected = Place::Sandbox { id: "sb-0123456789ab".into(), path: "/a:b".into() };
        assert_eq!(inside, expected);
        for local in ["a:b", "./sb-0123456789ab:/x", "sb-x:/y", "plain"] {
            assert_eq!(Place::parse(local), Place::Local(local.into()));
        }
    }

    #[test]
    fn a_directory_in_the_sandbox_gets_a_file_of_the_same_name() {
        assert_eq!(with_name_if_directory("/tmp/".into(), Some("a")), "/tmp/a");
        assert_eq!(with_name_if_directory("/tmp/b".into(), Some("a")), "/tmp/b");
    }
}
