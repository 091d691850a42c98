//! A copy step: files of the context into the sandbox.

use std::collections::BTreeSet;

use anyhow::Context as _;
use forkd_api::ExecRequest;
use forkd_recipe::{Copy, Placed};

use super::context::Context;
use super::machine::{Machine, SUPERUSER, succeeded};

/// So many paths change hands at once.
const OWNED_AT_ONCE: usize = 200;

/// Copies what was placed, and gives it to its owner.
pub(super) async fn copy(
    machine: &Machine,
    copy: &Copy,
    files: &[Placed],
    context: &Context,
) -> anyhow::Result<()> {
    let (client, id) = (&machine.client, &machine.id);
    let mut made = BTreeSet::new();
    for file in files {
        let directory = match file.is_directory {
            true => file.target.as_str(),
            false => above(&file.target),
        };
        if !directory.is_empty() && made.insert(directory.to_owned()) {
            client.make_directory(id, directory).await?;
        }
        if file.is_directory {
            continue;
        }
        let (content, own_mode, length) = context.open(&file.source)?;
        let mode = Some(copy.mode.unwrap_or(own_mode));
        let written = client.write_file_from(id, &file.target, mode, (content, length), |_| {});
        written.await.with_context(|| format!("copy `{}`", file.source))?;
    }
    let Some(owner) = &copy.owner else { return Ok(()) };
    for some in files.chunks(OWNED_AT_ONCE) {
        let targets = some.iter().map(|file| file.target.as_str());
        let words = ["chown", owner.as_str(), "--"].into_iter().chain(targets);
        let mut body = ExecRequest::new(words);
        body.user = Some(SUPERUSER.to_owned());
        succeeded(&client.exec(id, &body).await?).context("change the owner")?;
    }
    Ok(())
}

/// The directory of a path; empty for the root.
fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}
