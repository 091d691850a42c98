//! Files and directories: what is there, making, moving, removing.

use std::time::Duration;

use axum::http::HeaderMap;
use forkd_engine::guest::{Depth, ExecRequest, FileEntry, FileKind, FileLook};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::at::At;
use super::entry::{Entry, seen_kind, shown};
use super::metadata;
use super::place::{owner_of, user_of};
use crate::connect::Empty;
use crate::failure::{Failure, Kind};

/// Entries of one answer.
const ENTRIES_MAX: usize = 100_000;
/// For the image's program to move a tree, perhaps from one file system to another.
const MOVE_DEADLINE: Duration = Duration::from_secs(600);

/// What is meant: an absolute path, or one from the home of the user on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = PathRequest)]
pub(super) struct AtPath {
    #[serde(default)]
    path: String,
}

/// A directory whose content is asked for.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct ListDirRequest {
    #[serde(default)]
    path: String,
    /// How many directories deep; 0 is as 1.
    #[serde(default)]
    depth: u32,
}

/// What is moved, and where to.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct MoveRequest {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

/// What is at a path.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OneEntry {
    entry: Entry,
}

/// What is in a directory.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Entries {
    entries: Vec<Entry>,
}

impl At {
    /// The path that a call means.
    pub(super) async fn file(&self, headers: &HeaderMap, said: &str) -> Result<String, Failure> {
        self.path(said, user_of(headers)?.as_deref()).await
    }

    /// Makes a directory for the user that a call names.
    async fn make_directory(&self, headers: &HeaderMap, path: &str) -> Result<(), Failure> {
        let owner = owner_of(user_of(headers)?.as_deref());
        Ok(self.shared.engine.make_directory(&self.id, path, Some(owner)).await?)
    }

    pub(super) async fn entry(&self, path: &str) -> Result<FileEntry, Failure> {
        Ok(self.shared.engine.stat_file(&self.id, for_clients(path)).await?)
    }
}

fn for_clients(path: &str) -> FileLook<'_> {
    FileLook { path, attributes: Some(metadata::PREFIX), links: true }
}

fn one(entry: &FileEntry) -> OneEntry {
    OneEntry { entry: shown(entry) }
}

pub(super) async fn stat(at: &At, headers: &HeaderMap, ask: AtPath) -> Result<OneEntry, Failure> {
    let path = at.file(headers, &ask.path).await?;
    Ok(one(&at.entry(&path).await?))
}

/// A directory, then what is in it, each by name.
pub(super) async fn list(
    at: &At,
    headers: &HeaderMap,
    ask: ListDirRequest,
) -> Result<Entries, Failure> {
    let root = at.file(headers, &ask.path).await?;
    if seen_kind(&at.entry(&root).await?) == FileKind::File {
        return Err(Failure::field("path", "is not a directory"));
    }
    let mut shown_entries = Vec::new();
    // The next is the last one.
    let mut waiting = listed(at, &root, 1).await?;
    while let Some((entry, depth)) = waiting.pop() {
        if shown_entries.len() >= ENTRIES_MAX {
            let problem = format!("there are more than {ENTRIES_MAX} entries");
            return Err(Failure::field("depth", &problem));
        }
        shown_entries.push(shown(&entry));
        if entry.kind == FileKind::Directory && depth < ask.depth.max(1) {
            match listed(at, &entry.path, depth + 1).await {
                Ok(below) => waiting.extend(below),
                // Removed meanwhile.
                Err(failure) if failure.kind == Kind::NotFound => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(Entries { entries: shown_entries })
}

/// What is in a directory, the first last.
async fn listed(at: &At, path: &str, depth: u32) -> Result<Vec<(FileEntry, u32)>, Failure> {
    let entries = at.shared.engine.list_files(&at.id, for_clients(path)).await?;
    Ok(entries.into_iter().rev().map(|entry| (entry, depth)).collect())
}

pub(super) async fn make(at: &At, headers: &HeaderMap, ask: AtPath) -> Result<OneEntry, Failure> {
    let path = at.file(headers, &ask.path).await?;
    match at.entry(&path).await {
        Ok(entry) if seen_kind(&entry) == FileKind::Directory => {
            return Err(Failure::new(Kind::AlreadyExists, format!("{path}: already exists")));
        }
        Ok(_) => return Err(Failure::field("path", "is there, and is not a directory")),
        Err(failure) if failure.kind == Kind::NotFound => {}
        Err(failure) => return Err(failure),
    }
    at.make_directory(headers, &path).await?;
    Ok(one(&at.entry(&path).await?))
}

/// With the image's own program: the guest agent has no word for it.
pub(super) async fn rename(
    at: &At,
    headers: &HeaderMap,
    ask: MoveRequest,
) -> Result<OneEntry, Failure> {
    let from = at.file(headers, &ask.source).await?;
    let to = at.file(headers, &ask.destination).await?;
    at.entry(&from).await?;
    if let Some((above, _)) = to.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
        at.make_directory(headers, above).await?;
    }
    let mut request = ExecRequest::new(["mv", "-f", "-T", "--", &from, &to]);
    request.user = Some("0".to_owned());
    request.timeout = MOVE_DEADLINE;
    let output = at.shared.engine.exec(&at.id, request).await?;
    if output.exit_code != 0 {
        let said: String = String::from_utf8_lossy(&output.stderr).chars().take(500).collect();
        return Err(Failure::new(Kind::InvalidArgument, format!("move {from}: {said}")));
    }
    Ok(one(&at.entry(&to).await?))
}

/// What is not there is removed already.
pub(super) async fn remove(at: &At, headers: &HeaderMap, ask: AtPath) -> Result<Empty, Failure> {
    let path = at.file(headers, &ask.path).await?;
    let removed = at.shared.engine.remove_file(&at.id, &path, Depth::Recursive).await;
    match removed.map_err(Failure::from) {
        Ok(()) => Ok(Empty {}),
        Err(failure) if failure.kind == Kind::NotFound => Ok(Empty {}),
        Err(failure) => Err(failure),
    }
}
