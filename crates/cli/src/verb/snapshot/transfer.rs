//! A snapshot as a file, out and in.

use std::fs;
use std::io::{self, IsTerminal as _, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use forkd_client::{FileContent, ImportArtifact};
use serde_json::json;

use crate::console::output;
use crate::console::progress::{self, Bar};
use crate::console::report::{self, Hinted};
use crate::daemon::connect;
use crate::options::Global;

/// Stands for standard input or output.
const STREAM: &str = "-";

const WARNING: &str = "warning: the file holds the memory and disk of the sandbox, with every \
                       password and key that programs had read there";

const RISK: &str = "warning: importing whoever signed it: the file decides what runs in sandboxes \
                    of this snapshot, and a forged device state can attack the VMM on this host";

pub(super) async fn export(
    global: &Global,
    tag: &str,
    file: Option<PathBuf>,
) -> anyhow::Result<()> {
    let file = file.unwrap_or_else(|| format!("{}.tar", tag.replace('/', "-")).into());
    let to_stream = file.as_os_str() == STREAM;
    if to_stream && io::stdout().is_terminal() {
        let hint = format!("name a file, as in `forkd snapshot export {tag} FILE`");
        return Err(Hinted::usage("a terminal cannot show a snapshot", &hint).into());
    }
    let client = connect::client(global).await?;
    let asked = client.export_snapshot(tag);
    let content = progress::during(&format!("read {tag}"), asked).await?;
    report::remark(WARNING);
    if to_stream {
        copy(tag, content, &mut io::stdout().lock()).await?;
        return Ok(());
    }
    let bytes = to_file(tag, content, &file).await?;
    if global.json {
        return output::json(&json!({ "file": file, "bytes": bytes }));
    }
    output::line(&file.display().to_string())
}

/// Writes under another name first: there is a whole file, or what was there before.
async fn to_file(tag: &str, content: FileContent, file: &Path) -> anyhow::Result<u64> {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let failed = || format!("write `{}`", part.display());
    // Nobody else is to read what is in it.
    let mut options = fs::OpenOptions::new();
    let mut to = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .with_context(failed)?;
    let copied = copy(tag, content, &mut to).await;
    let kept = copied.and_then(|bytes| {
        to.sync_all().with_context(failed)?;
        fs::rename(&part, file).with_context(|| format!("write `{}`", file.display()))?;
        Ok(bytes)
    });
    if kept.is_err() {
        // The error that matters is the first one.
        fs::remove_file(&part).ok();
    }
    kept
}

async fn copy(tag: &str, mut content: FileContent, to: &mut dyn Write) -> anyhow::Result<u64> {
    let length = content.length();
    let bar = Bar::of_bytes(tag, length.unwrap_or_default());
    let mut bytes = 0;
    while let Some(piece) = content.next().await? {
        to.write_all(&piece).context("write the snapshot")?;
        bytes += piece.len() as u64;
        bar.at(bytes);
    }
    to.flush().context("write the snapshot")?;
    anyhow::ensure!(length.is_none_or(|length| length == bytes), "the daemon broke the export off");
    Ok(bytes)
}

pub(super) async fn import(
    global: &Global,
    file: &Path,
    how: &ImportArtifact,
) -> anyhow::Result<()> {
    if how.trust_once {
        report::remark(RISK);
    }
    let failed = || format!("read `{}`", file.display());
    let (content, length): (Box<dyn Read + Send>, Option<u64>) = if file.as_os_str() == STREAM {
        (Box::new(io::stdin()), None)
    } else {
        let opened = fs::File::open(file).with_context(failed)?;
        let metadata = opened.metadata().with_context(failed)?;
        (Box::new(opened), metadata.is_file().then_some(metadata.len()))
    };
    let client = connect::client(global).await?;
    let bar = Arc::new(Bar::of_bytes(&file.display().to_string(), length.unwrap_or_default()));
    let shown = Arc::clone(&bar);
    let snapshot =
        client.import_snapshot(how, (content, length), move |count| shown.at(count)).await?;
    drop(bar);
    if global.json {
        return output::json(&snapshot);
    }
    output::line(&snapshot.tag)
}
