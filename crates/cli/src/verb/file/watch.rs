//! `forkd file watch`: changes in a sandbox's file system, as they happen.

use forkd_api::FileChange;
use forkd_client::Client;

use crate::console::output::{self, Reader};
use crate::console::report::{self, Hinted};
use crate::options::Global;
use crate::options::place::{Remote, depth};

/// Print changes of a file or a directory as they happen
///
/// Each change is a line: what happened, and where. With --json each line is an object.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// SANDBOX:/PATH
    path: Remote,
    /// Watch everything below a directory, too
    #[arg(short, long)]
    recursive: bool,
}

pub(super) async fn run(global: &Global, client: &Client, options: Options) -> anyhow::Result<()> {
    let Remote { sandbox, path } = &options.path;
    let mut changes = client.watch_files(sandbox, path, depth(options.recursive)).await?;
    report::remark(&format!("watching {path}"));
    while let Some(change) = changes.next().await? {
        let line = if global.json {
            serde_json::to_string(&change)?
        } else {
            report::printable_line(&shown(&change))
        };
        if output::flowing(format!("{line}\n").as_bytes())? == Reader::Gone {
            return Ok(());
        }
    }
    let hint = "`forkd ls` shows whether the sandbox is still there";
    Err(Hinted::new(format!("the daemon no longer watches {path}"), hint).into())
}

fn shown(change: &FileChange) -> String {
    match change {
        FileChange::Created { path } => format!("created   {path}"),
        FileChange::Modified { path } => format!("modified  {path}"),
        FileChange::Removed { path } => format!("removed   {path}"),
        FileChange::Renamed { path, from } => format!("renamed   {from} -> {path}"),
        FileChange::Lost {} => "lost      changes were missed; list the directory again".to_owned(),
        FileChange::Gone { reason } => format!("gone      {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_happened_and_where() {
        let path = "/b".to_owned();
        assert_eq!(shown(&FileChange::Created { path: path.clone() }), "created   /b");
        let renamed = FileChange::Renamed { path, from: "/a".to_owned() };
        assert_eq!(shown(&renamed), "renamed   /a -> /b");
    }
}
