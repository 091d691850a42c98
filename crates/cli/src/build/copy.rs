//! A copy step: files of the context into the sandbox.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use forkd_api::ExecRequest;
use forkd_client::FileAttributes;
use forkd_recipe::{CopiedFile, Copy, Placed};
use forkd_types::Digest;
use sha2::{Digest as _, Sha256};

use super::context::Context;
use super::machine::{Machine, SUPERUSER, succeeded};
use crate::console::report::Hinted;

/// So many paths change hands at once.
const OWNED_AT_ONCE: usize = 200;

/// A file that is read once, and the hash of what was read.
struct Hashed {
    file: File,
    hash: Arc<Mutex<Sha256>>,
}

impl Read for Hashed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.hash.lock().unwrap_or_else(PoisonError::into_inner).update(&into[..count]);
        Ok(count)
    }
}

/// Copies what was placed, and gives it to its owner. A file that has become another one since its
/// step got its key is refused: the cache would have it under a wrong key.
pub(super) async fn copy(
    machine: &Machine,
    copy: &Copy,
    files: &[(Placed, CopiedFile)],
    context: &Context,
) -> anyhow::Result<()> {
    let (client, id) = (&machine.client, &machine.id);
    let mut made = BTreeSet::new();
    for (file, described) in files {
        let directory = match file.is_directory {
            true => file.target.as_str(),
            false => above(&file.target),
        };
        if !directory.is_empty() && made.insert(directory.to_owned()) {
            client.make_directory(id, directory, None).await?;
        }
        if file.is_directory {
            continue;
        }
        let (content, own_mode, length) = context.open(&file.source)?;
        let mode = Some(copy.mode.unwrap_or(own_mode));
        let hash = Arc::new(Mutex::new(Sha256::new()));
        let content = Hashed { file: content, hash: Arc::clone(&hash) };
        let attributes = FileAttributes { mode, user: None };
        let content = (content, length);
        let written = client.write_file_from(id, &file.target, attributes, content, |_| {});
        written.await.with_context(|| format!("copy `{}`", file.source))?;
        let found = hash.lock().unwrap_or_else(PoisonError::into_inner).clone().finalize();
        if described.content != Some(Digest::from_sha256(found.into()))
            || Some(described.mode) != mode
        {
            let message = format!("`{}` changed while it was copied", file.source);
            return Err(Hinted::new(message, "build again").into());
        }
    }
    let Some(owner) = &copy.owner else { return Ok(()) };
    for some in files.chunks(OWNED_AT_ONCE) {
        let targets = some.iter().map(|(file, _)| file.target.as_str());
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
